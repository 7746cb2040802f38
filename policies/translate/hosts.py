"""A plain list, one entry a line: a name, `*.name`, `.name` (the name and all below), `*`, an address, a network, any
of them with `:port`, or a URL. `#` starts a comment, `!` in front denies."""

from __future__ import annotations

import re

from policies.model import PolicyError
from policies.name import show
from policies.source import read_text
from policies.translate.draft import ALL_PORTS, WHOLE, Draft, Options, Reach, Translation
from policies.values import NamedTuple

SCHEMES = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22, "sftp": 22, "git": 9418}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([/?#].*)?", re.DOTALL)
_BRACKETED = re.compile(r"(?a)\[([0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\](?::([^:]*))?")


class Entry(NamedTuple):
    """A host with its port, and what of a URL goes beyond these."""

    host: str
    port: int | None = None
    rest: str = ""
    tcp: bool = False


def translate(text: str, options: Options) -> Translation:
    """Translate a list. Raises PolicyError (`line 7`)."""
    draft = Draft(options)
    for number, line in enumerate(read_text(text).split("\n"), 1):
        line = re.sub(r"(?:^|\s)#.*", "", line).strip(" \t\r")
        if not line:
            continue
        place = f"line {number}"
        denied = line.startswith("!")
        entry = parse(line.lstrip("!").strip() if denied else line, place)
        if denied and entry.rest:
            draft.gap(place, f"denied as a whole, not only {show(entry.rest)}: paths are not the guard's to see")
        elif entry.rest and not draft.only_wider(place, f"opens all of {entry.host}, not only {show(entry.rest)}"):
            continue
        ports = both(entry.port, udp=not entry.tcp)
        for host in (entry.host[1:], f"*{entry.host}") if entry.host.startswith(".") else (entry.host,):
            if denied:
                draft.deny(host, ports if entry.port else WHOLE, place)
            else:
                draft.allow(host, ports, place)
    return draft.finish()


def both(port: int | None, *, udp: bool = True) -> Reach:
    """One port, or every port, of TCP and, where wanted, UDP."""
    if port is None and udp:
        return WHOLE
    ranges = ALL_PORTS if port is None else ((port, port),)
    return Reach(ranges, ranges if udp else ())


def parse(text: str, place: str) -> Entry:
    """An entry as host and port. Raises PolicyError."""
    if re.search(r"\s", text):
        raise PolicyError(
            place, f"{show(text)}: white space inside; write one host a line (lines of /etc/hosts are none)"
        )
    match = _URL.fullmatch(text)
    if not match:
        host, port = split_port(text, place)
        return Entry(host, port)
    scheme, authority, rest = match[1].lower(), match[2], match[3] or ""
    if "@" in authority:
        raise PolicyError(place, f"{show(text)}: a user in a URL; write the host alone")
    host, port = split_port(authority, place)
    port = port or SCHEMES.get(scheme)
    if port is None:
        raise PolicyError(place, f"{show(text)}: no port is known for {scheme}; write host:port")
    return Entry(host, port, rest if rest.strip("/") else "", tcp=True)


def split_port(text: str, place: str) -> tuple[str, int | None]:
    """`host:port`, IPv6 in brackets. Raises PolicyError."""
    match = _BRACKETED.fullmatch(text)
    if match:
        return match[1], _port(match[2], text, place)
    if text.count(":") == 1:
        host, _, number = text.partition(":")
        return host, _port(number, text, place)
    return text, None


def _port(text: str | None, whole: str, place: str) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"(?a)[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise PolicyError(place, f"{show(whole)}: no port behind the colon; write one from 1 to 65535")
    return int(text)
