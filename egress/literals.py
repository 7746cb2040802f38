"""How settings are spelled: words, numbers, addresses, ports, URLs. Each text is taken apart once, into a value.

Used by the configuration on the start-up path, so it does without `ipaddress` and `urllib`. Addresses are packed
bytes as everywhere in this program, 4 or 16 of them, an IPv4-mapped IPv6 address as 4.
"""

from __future__ import annotations

import re
import socket

from policies.address import AddressError, Network, parse_network
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DIGITS = re.compile(r"[0-9]{1,9}")
TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE = frozenset({"0", "false", "f", "no", "n", "off"})
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_URL = r"(?i)(https?)://(?:([^/?#@]*)@)?(\[[^\]/?#@]*\]|[^/?#@:\[\]]*)(?::([^/?#@]*))?([/?][^#]*)?(?:#.*)?"


class ConfigError(ValueError):
    """A setting that cannot be used; `str()` is one printable line that begins with the variable's name."""

    def __init__(self, variable: str, problem: str) -> None:
        self.variable = variable
        self.problem = problem
        super().__init__(f"{variable}: {problem}")


class Endpoint(NamedTuple):
    """A literal address and a port."""

    address: bytes
    port: int


class Url(NamedTuple):
    """An http or https URL, taken apart once."""

    secure: bool
    host: str  # a name, or an address literal without brackets
    port: int
    target: str  # path and query as they go on the request line
    userinfo: str  # "user:password" still percent-encoded, or ""


def safe(text: str, limit: int = 60) -> str:
    """`text` in a form that may be printed on one line: ASCII only, everything else escaped, cut at `limit`."""
    shown = text[:limit].encode("unicode_escape").decode("ascii")
    return shown + ("..." if len(text) > limit else "")


class Reader:
    """Variables by what follows `prefix` in their names; an empty or blank value counts as absent.

    What a method cannot use it refuses with a ConfigError.
    """

    __slots__ = ("_environ", "_prefix")

    def __init__(self, environ: Mapping[str, str], prefix: str) -> None:
        self._environ = environ
        self._prefix = prefix

    def text(self, name: str) -> str:
        return self._environ.get(self._prefix + name, "").strip()

    def listed(self, name: str) -> Iterator[str]:
        text = self.text(name)
        parts = [part.strip() for part in text.split(",")]
        if text and not any(parts):
            raise ConfigError(self._prefix + name, "holds only commas; write values between them, or unset it")
        return (part for part in parts if part)

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if not text:
            return default
        if text in TRUE:
            return True
        if text in FALSE:
            return False
        raise ConfigError(self._prefix + name, f"'{safe(text)}' is neither true nor false; write true or false")

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not DIGITS.fullmatch(text) or not low <= int(text) <= high:
            raise ConfigError(self._prefix + name, f"'{safe(text)}' is not a whole number from {low} to {high}")
        return int(text)

    def choice(self, name: str, no: str, yes: str) -> bool:
        """One of two words; absent is `no`."""
        text = self.text(name).lower() or no
        if text not in (no, yes):
            raise ConfigError(self._prefix + name, f"unknown value '{safe(text)}'; write {no} or {yes}")
        return text == yes

    def printable(self, name: str, limit: int) -> str:
        text = self.text(name)
        if len(text) > limit:
            raise ConfigError(self._prefix + name, f"is {len(text)} characters long; at most {limit} are taken")
        if not text.isprintable():
            raise ConfigError(self._prefix + name, "has characters that cannot be printed; remove them")
        return text


def pack(text: str) -> bytes | None:
    """The address that `text` spells, 4 or 16 bytes; None when it is no address literal.

    `inet_pton` is as strict as this needs: no leading zeros, no short forms, no zone ids.
    """
    try:
        return socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        pass
    try:
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        return None
    return packed[12:] if packed[:12] == b"\0" * 10 + b"\xff\xff" else packed


def parse_url(variable: str, text: str) -> Url:
    """Take an http or https URL apart. The value is never quoted in an error: it may hold a secret."""
    if not all("!" <= character <= "~" for character in text):
        raise ConfigError(variable, "has blanks or characters outside ASCII; percent-encode them")
    match = re.fullmatch(_URL, text)
    if match is None:
        raise ConfigError(variable, "is not an http or https URL; write it like https://hooks.example.com/denied")
    scheme, userinfo, host, port_text, target = match.groups()
    if host.startswith("["):
        host = host[1:-1]
        if ":" not in host or pack(host) is None:
            raise ConfigError(variable, "has no valid IPv6 address between the brackets")
    elif not is_host(host) or (pack(host) is None and _looks_numeric(host)):
        raise ConfigError(variable, "has no valid host name; write it like https://hooks.example.com/denied")
    secure = scheme.lower() == "https"
    port = read_port(variable, port_text) if port_text else 443 if secure else 80
    target = target or "/"
    if target.startswith("?"):
        target = "/" + target
    return Url(secure, host.lower().removesuffix("."), port, target, userinfo or "")


def read_port(variable: str, text: str) -> int:
    """A decimal port from 1 to 65535."""
    if not DIGITS.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ConfigError(variable, f"'{safe(text)}' is not a port from 1 to 65535")
    return int(text)


def split_port(variable: str, text: str) -> tuple[str, str | None]:
    """Split `1.2.3.4:53`, `[v6]:53`, `[v6]` and bare addresses into address and port text."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ConfigError(
                variable, f"'{safe(text)}' is malformed; write an IPv6 address and port as [2001:db8::1]:53"
            )
        return host, rest[1:] if rest else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, None


def unusable(packed: bytes) -> str:
    """Why no resolver can be asked at this address, or ""."""
    if packed == b"\0" * 15 + b"\x01" or (len(packed) == 4 and packed[0] == 127):
        return "is a loopback address, where the sandbox itself could answer"
    if packed == b"\0" * 16 or (len(packed) == 4 and packed[0] == 0):
        return "is the unspecified address"
    if packed == b"\xff" * 4:
        return "is the broadcast address"
    if (len(packed) == 4 and 224 <= packed[0] < 240) or (len(packed) == 16 and packed[0] == 0xFF):
        return "is a multicast address"
    if len(packed) == 16 and packed[0] == 0xFE and packed[1] & 0xC0 == 0x80:
        return "is link-local IPv6, which no address without an interface can reach"
    return ""


def read_network(variable: str, text: str) -> Network:
    """A CIDR or a single address, as policies spell them."""
    try:
        return parse_network(text)
    except AddressError as error:
        raise ConfigError(variable, f"'{safe(text)}': {error}") from None


def is_host(text: str) -> bool:
    """Whether `text` is a host name: ASCII labels of 1 to 63 characters, 253 in all, with or without the last dot."""
    name = text.removesuffix(".")
    return len(name) <= 253 and all(re.fullmatch(_LABEL, label) for label in name.split("."))


def _looks_numeric(name: str) -> bool:
    """Some resolver or libc would take such a name for an address (`2130706433`, `0x7f.1`)."""
    return re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", name.removesuffix(".").rpartition(".")[2]) is not None
