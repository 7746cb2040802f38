"""How settings are written: flags in the style of GNU and of Go, each also as a variable, and what values look like.

`--port 28888`, `--port=28888` and `-port 28888` are the same; a switch stands alone or as `--admin-only=false`. A flag
wins over its variable, a later flag over an earlier one, and what is empty counts as not given. Pure; every fault is a
`ConfigError`: one line that begins with the flag, or the variable, that has to be changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from policies.address import AddressError, Network, parse_address, parse_network

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PREFIX = "SALLYPORT_INGRESS_"
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d))+|[0-9]{1,9}(?:\.[0-9]{1,9})?")
_PART = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]{1,12})([kmg]?)(?:i?b)?")
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class ConfigError(ValueError):
    """A setting that cannot be used; `str()` is one printable line that begins with the flag's or variable's name."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")


class Flag(NamedTuple):
    """One setting, as `--help` shows it."""

    name: str  # without the dashes
    value: str  # what stands for the value in the help; "" for a switch
    default: str  # as one would write it; "" for none
    about: str
    variables: tuple[str, ...] = ()  # further variables, looked at after PREFIX + NAME

    @property
    def variable(self) -> str:
        """The variable that stands for the flag."""
        return PREFIX + self.name.replace("-", "_").upper()


def safe(text: str, limit: int = 60) -> str:
    """`text` in a form that may be printed on one line: ASCII only, everything else escaped, cut at `limit`."""
    shown = text[:limit].encode("unicode_escape").decode("ascii")
    return shown + ("..." if len(text) > limit else "")


class Reader:
    """What was written for each flag; ConfigError where one is unknown or lacks its value."""

    def __init__(self, flags: Iterable[Flag], argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._flags = {flag.name: flag for flag in flags}
        self._environ = environ
        self._given: dict[str, tuple[str, str]] = {}  # name -> (as it was spelled, value)
        rest = list(argv)
        while rest:
            self._take(rest)

    def _take(self, rest: list[str]) -> None:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            raise ConfigError(safe(word), "not expected here; settings are flags, such as --port 28888")
        spelled, equals, value = word.partition("=")
        name = spelled.removeprefix("-").removeprefix("-")
        flag = self._flags.get(name)
        if flag is None:
            raise ConfigError(safe(spelled), f"there is no such flag{self._nearest(name)}; --help lists them")
        if not equals:
            if not flag.value:
                value = "true"
                if rest and rest[0].lower() in _TRUE | _FALSE:
                    raise ConfigError(spelled, f"a switch takes its value after =; write --{name}={safe(rest[0])}")
            elif not rest or self._is_flag(rest[0]):
                raise ConfigError(spelled, f"needs a value; write --{name} {flag.value}")
            else:
                value = rest.pop(0)
        self._given[name] = (f"--{name}", value)

    def _is_flag(self, word: str) -> bool:
        return word.startswith("-") and word.partition("=")[0].lstrip("-") in self._flags

    def _nearest(self, name: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(name, self._flags, 1)
        return f"; did you mean --{near[0]}?" if near else ""

    def find(self, name: str) -> tuple[str, str]:
        """(where it was written, the text); ("--name", "") where nobody wrote anything."""
        flag = self._flags[name]
        where, text = self._given.get(name, ("", ""))
        if text.strip():
            return where, text.strip()
        for variable in (flag.variable, *flag.variables):
            text = self._environ.get(variable, "").strip()
            if text:
                return variable, text
        return f"--{name}", ""

    def given(self, name: str) -> bool:
        """Somebody wrote a value."""
        return bool(self.find(name)[1])

    def text(self, name: str) -> str:
        """The value as written, else the flag's default."""
        return self.find(name)[1] or self._flags[name].default

    def boolean(self, name: str) -> bool:
        where, text = self.find(name)
        return truth(where, text or self._flags[name].default or "false")

    def choice(self, name: str, choices: Sequence[str]) -> str:
        where, text = self.find(name)
        text = (text or self._flags[name].default).lower()
        if text not in choices:
            raise ConfigError(where, f"'{safe(text)}' is not known; write {one_of(choices)}")
        return text

    def integer(self, name: str, low: int, high: int) -> int:
        where, text = self.find(name)
        return whole(where, text or self._flags[name].default, low, high)

    def number(self, name: str, low: float, high: float) -> float:
        where, text = self.find(name)
        text = text or self._flags[name].default
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not low <= float(text) <= high:
            raise ConfigError(where, f"'{safe(text)}' is not a number from {low:g} to {high:g}")
        return float(text)

    def duration(self, name: str, low: float, high: float) -> float:
        where, text = self.find(name)
        return duration(where, text or self._flags[name].default, low, high)

    def size(self, name: str, low: int, high: int) -> int:
        where, text = self.find(name)
        return size(where, text or self._flags[name].default, low, high)

    def networks(self, name: str) -> tuple[Network, ...]:
        """Comma-separated prefixes or addresses."""
        return networks(*self.find(name))

    def address(self, name: str) -> str:
        """A literal address to bind, without brackets; "" for every address, v4 and v6."""
        where, text = self.find(name)
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if bare in ("", "*"):
            return ""
        if bare == "localhost":
            return "127.0.0.1"
        try:
            parse_address(bare)
        except AddressError:
            raise ConfigError(
                where, f"'{safe(text)}' is not an address; write 127.0.0.1, ::1, or leave it out for every address"
            ) from None
        return bare

    def path(self, name: str) -> str:
        where, text = self.find(name)
        if "\0" in text:
            raise ConfigError(where, "no file name holds a NUL octet; remove it")
        return text

    def warn_unknown(self) -> list[str]:
        """A line about variables with our prefix that no flag has, or nothing."""
        known = {flag.variable for flag in self._flags.values()}
        unknown = sorted(name for name in self._environ if name.startswith(PREFIX) and name not in known)
        if not unknown:
            return []
        return ["unknown variables, ignored: " + ", ".join(safe(name, 80) for name in unknown[:20])]


def one_of(choices: Sequence[str]) -> str:
    """`a, b or c`."""
    return ", ".join(choices[:-1]) + f" or {choices[-1]}" if len(choices) > 1 else choices[0]


def listed(where: str, text: str) -> list[str]:
    """The members of a comma-separated list."""
    parts = [part.strip() for part in text.split(",")]
    if text and not any(parts):
        raise ConfigError(where, "holds only commas; write values between them, or leave it out")
    return [part for part in parts if part]


def networks(where: str, text: str) -> tuple[Network, ...]:
    """Comma-separated prefixes or addresses."""
    found = []
    for part in listed(where, text):
        try:
            found.append(parse_network(part))
        except AddressError as error:
            raise ConfigError(where, f"'{safe(part)}': {error}") from None
    return tuple(dict.fromkeys(found))


def truth(where: str, text: str) -> bool:
    """true or false, in the words that people and Go's flags use."""
    low = text.lower()
    if low in _TRUE:
        return True
    if low in _FALSE:
        return False
    raise ConfigError(where, f"'{safe(text)}' is neither true nor false; write true or false")


def whole(where: str, text: str, low: int, high: int) -> int:
    """A whole number in decimal digits."""
    if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
        raise ConfigError(where, f"'{safe(text)}' is not a whole number from {low} to {high}")
    return int(text)


def duration(where: str, text: str, low: float, high: float) -> float:
    """Seconds out of `10s`, `1h30m`, `250ms` or a plain number of seconds."""
    compact = text.replace(" ", "").lower()
    if not _DURATION.fullmatch(compact):
        raise ConfigError(where, f"'{safe(text)}' is not a duration; write 10s, 5m, 1h or a number of seconds")
    parts = _PART.findall(compact)
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in parts) if parts else float(compact)
    if not low <= seconds <= high:
        raise ConfigError(where, f"'{safe(text)}' is out of range; write a duration from {low:g}s to {high:g}s")
    return seconds


def size(where: str, text: str, low: int, high: int) -> int:
    """Octets out of `65536`, `64k`, `64KiB`, `10m` or `1g` (powers of 1,024)."""
    match = _SIZE.fullmatch(text.replace(" ", "").lower())
    if match is None:
        raise ConfigError(where, f"'{safe(text)}' is not a size; write a number of octets, or 64k, 10m, 1g")
    octets = int(match[1]) * _FACTOR[match[2]]
    if not low <= octets <= high:
        raise ConfigError(where, f"'{safe(text)}' is out of range; write a size from {low} to {high} octets")
    return octets
