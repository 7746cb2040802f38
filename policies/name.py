"""Names and targets: text in, canonical text out, or an error that says what to write instead.

Canonical is lower case, A-labels, no trailing dot. Names outside ASCII are IDNA 2008 (RFC 5891) after lower-casing
and composition (NFC, RFC 5895 without its width and full-stop mappings, which hide what somebody really wrote); the
`idna` package is imported only then. An A-label is taken as it stands.

A name whose last label is a number is refused: resolvers and clients in the tradition of inet_aton(3), and every
URL parser of the WHATWG's, read it as an IPv4 address.
"""

from __future__ import annotations

import re

from policies.address import AddressError, Network, parse_address, parse_network
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?", re.ASCII)
_PLAIN = re.compile(  # canonical already; the last label starts with a letter, so it can't be a number
    r"(?:[*][.])?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?[.])*[a-z_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII
)
# Patterns that ordinary policies don't need are compiled when they are first used: a start has no time for them.
_ORDINARY = r"(?a)[a-z0-9-]"
_NUMBER = r"(?a)[0-9]+|0x[0-9a-f]*"
_HOST_PORT = r"(?a)([^:\[\]/]+):([0-9]*)"
_BRACKETS = r"(?a)\[([^\[\]]*)\](?::([0-9]*))?"
_SHOWN = 80
_LONGEST_INPUT = 1000


class TargetError(ValueError):
    """Text that isn't a target; the message is safe to print and says what to write instead."""


class Target(NamedTuple):
    """A canonical target; kinds as in `model.Rule`."""

    text: str
    kind: str
    network: Network | None


def show(text: str) -> str:
    """Text in quotes, safe for a terminal and a log line: escapes for what doesn't print, cut to a bearable length."""
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."
    return "'" + "".join(char if char.isprintable() and char != "'" else _escape(char) for char in text) + "'"


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def parse_target(text: str) -> Target:
    """A name, `*.suffix`, `*`, address or prefix. ASCII space around it is trimmed. Raises TargetError."""
    text = text.strip(" ")
    if _PLAIN.fullmatch(text) and len(text) <= 253:  # the common case; says nothing that the rest wouldn't
        return Target._make((text, "suffix" if text[0] == "*" else "name", None))
    if not text:
        raise TargetError('empty; write a name such as "api.example.com"')
    if len(text) > _LONGEST_INPUT:
        raise TargetError(f"{len(text)} characters; a name has at most 253")
    _refuse_invisible(text)
    if "://" in text:
        host = re.split(r"[/?#]", text.split("://", 1)[1].rpartition("@")[2])[0]
        raise TargetError("a URL; " + _write(_without_port(host), "only its host"))
    if "/" in text:
        return _prefix(text)
    if "[" in text or "]" in text:
        raise TargetError(_bracket_complaint(text))
    if ":" in text:
        match = re.fullmatch(_HOST_PORT, text)
        if match:
            raise TargetError(_port_complaint(match[1], match[2]))
        return _address(text)
    if "%" in text:
        raise TargetError("'%' has no place in a name, and zone ids none in a policy")
    if text == "*":
        return Target("*", "any", None)
    if all(char in "0123456789." for char in text) and text.count(".") == 3 and not text.endswith("."):
        return _address(text)
    if text.startswith("*."):
        name = canonical(text[2:], room=251, wildcard=True)
        return Target("*." + name, "suffix", None)
    return Target(canonical(text), "name", None)


def canonical(text: str, room: int = 253, *, wildcard: bool = False) -> str:
    """A name without a wildcard in canonical form, at most `room` octets. Raises TargetError."""
    text = text.removesuffix(".")
    example = '"*.example.com"' if wildcard else '"api.example.com"'
    labels = text.split(".")
    if not all(labels):
        raise TargetError(f"empty label; write a name such as {example}")
    if "*" in text:
        raise TargetError('a wildcard stands only as the whole first label; write "*.example.com" or "*"')
    labels = [_label(label) for label in labels]
    name = ".".join(labels)
    if len(name) > room:
        raise TargetError(f"{len(name) + 253 - room} octets; a name has at most 253")
    if re.fullmatch(_NUMBER, labels[-1]):
        raise TargetError(
            "the last label is a number, which some programs read as an address; "
            'write an address as four decimal numbers, such as "192.0.2.1"'
        )
    return name


def _label(label: str) -> str:
    """One label, canonical."""
    label = label.lower() if label.isascii() else _a_label(label)
    if len(label) > 63:
        raise TargetError(f"label {show(label)} has {len(label)} octets; a label has at most 63")
    if not _LABEL.fullmatch(label):
        if label[0] == "-" or label[-1] == "-":
            raise TargetError(f"label {show(label)} starts or ends with a hyphen")
        wrong = next(char for char in label if not re.match(r"[a-z0-9_-]", char, re.ASCII))
        raise TargetError(f"{show(wrong)} has no place in a name; write letters, digits, hyphens and dots")
    return label


def _a_label(label: str) -> str:
    """A U-label as an A-label, by IDNA 2008 without mappings but lower case and composition."""
    import unicodedata

    lowered = "".join(char.lower() if len(char.lower()) == 1 else char for char in label)
    for char in label:
        if not char.isascii() and (char.lower().isascii() or unicodedata.normalize("NFC", char).isascii()):
            raise TargetError(f"{show(char)} stands for an ASCII letter; write the ASCII one")
    composed = unicodedata.normalize("NFC", lowered)
    idna = _idna()
    try:
        return str(idna.alabel(composed).decode("ascii"))
    except (idna.IDNAError, UnicodeError, ValueError, IndexError):
        forbidden = next((char for char in composed if not _valid_char(idna, char)), None)
        if forbidden is not None:
            raise TargetError(
                f"{show(forbidden)} (U+{ord(forbidden):04X}) isn't allowed in a name by IDNA 2008"
            ) from None
        raise TargetError(f"label {show(label)} isn't allowed by IDNA 2008; try its A-label, xn--...") from None


def _valid_char(idna: ModuleType, char: str) -> bool:
    """May the character stand in some label: alone, or behind a letter as combining marks do."""
    import unicodedata

    if re.fullmatch(_ORDINARY, char):
        return True
    for label in (char, unicodedata.normalize("NFC", "a" + char)):
        try:
            idna.check_label(label)
        except (idna.IDNAError, UnicodeError, ValueError, IndexError):
            continue
        return True
    return False


def _idna() -> ModuleType:
    try:
        import idna
    except ImportError:
        raise TargetError(
            "a name outside ASCII needs the Python package idna; install it or write A-labels, xn--..."
        ) from None
    return idna


_FULL_STOPS = "\u3002\uff0e\uff61"


def _refuse_invisible(text: str) -> None:
    if text.isascii() and text.isprintable() and " " not in text:
        return
    for char in text:
        if char in _FULL_STOPS:
            raise TargetError(f"{show(char)} (U+{ord(char):04X}) looks like a full stop; write '.'")
        if char.isspace():
            raise TargetError(f"white space (U+{ord(char):04X}) inside; write one target without it")
        if not char.isprintable() and char not in "\u200c\u200d":  # joiners: IDNA 2008 knows where they may stand
            raise TargetError(f"an invisible character (U+{ord(char):04X}); write the target without it")


def _address(text: str) -> Target:
    try:
        network = parse_network(text)
    except AddressError as error:
        raise TargetError(str(error)) from None
    return Target._make((str(network), "address", network))


def _prefix(text: str) -> Target:
    base, _, rest = text.partition("/")
    if base.startswith("["):
        raise TargetError("an address in brackets; write a prefix without them, such as 2001:db8::/32")
    looks_like_address = ":" in base and not re.fullmatch(_HOST_PORT, base)
    if looks_like_address or (base and not base.strip("0123456789.")):
        if ":" in rest and re.fullmatch(r"[0-9]+:[0-9]+", rest, re.ASCII):
            length, _, port = rest.partition(":")
            raise TargetError(f'a port has no place here; write "{base}/{length}" and "ports": [{port}]')
        return _address(text)
    raise TargetError("a path; " + _write(_without_port(base), "only the host"))


def _bracket_complaint(text: str) -> str:
    match = re.fullmatch(_BRACKETS, text)
    if match and ":" in match[1]:
        return "an address in brackets; " + _write(match[1], "it without") + _and_ports(match[2])
    return "brackets have no place in a target"


def _port_complaint(host: str, port: str) -> str:
    return "a port has no place here; " + _write(host, "the name alone") + _and_ports(port)


def _and_ports(port: str | None) -> str:
    return f' and "ports": [{port}]' if port else ""


def _without_port(host: str) -> str:
    match = re.fullmatch(_BRACKETS, host) or re.fullmatch(_HOST_PORT, host)
    return match[1] if match else host


def _write(text: str, otherwise: str) -> str:
    """`write "api.example.com"` where the text is a good target, else in general words."""
    try:
        return f'write "{parse_target(text).text}"'
    except TargetError:
        return f"write {otherwise}"


def parse_host(text: str) -> str | bytes:
    """What a person asks about: a name in canonical form (`""` for the root `.`), or an address as packed bytes."""
    text = text.strip(" ")
    if text == ".":
        return ""
    try:
        return parse_address(text)
    except AddressError:
        target = parse_target(text)
    if target.kind != "name":
        raise TargetError("a pattern; ask about one name or address, such as api.example.com")
    return target.text
