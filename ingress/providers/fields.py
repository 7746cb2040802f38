"""What a source says about a sandbox, checked once at the door: ids, hosts, ports, tokens. Pure."""

from __future__ import annotations

import re

from policies.address import AddressError, format_address, parse_address

LONGEST_ID = 128
"""Characters of a sandbox's id; routes can't name a longer one."""
_ID = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", re.ASCII)


class FieldError(ValueError):
    """A value that can't be used; the message says why and what to write, without the value where it is a secret."""


def shown(text: str) -> str:
    """Text from outside in quotes for a message: cut, with what isn't printable written out."""
    cut = text if len(text) <= 60 else text[:57] + "..."
    return '"' + cut.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def sandbox_id(text: str) -> str:
    """The id as it is, where a route can name it: a token (RFC 9110, 5.6.2) of at most 128 characters."""
    if not text:
        raise FieldError("an empty id")
    if len(text) > LONGEST_ID:
        raise FieldError(f"an id of {len(text)} characters; {LONGEST_ID} are the most")
    if not _ID.fullmatch(text):
        raise FieldError(f"no route can name the id {shown(text)}; use letters, digits, '.', '_' and '-'")
    return text


def host(text: str) -> str:
    """An address in its canonical form, without brackets, or a host name in lower case without its trailing dot."""
    text = text.strip(" \t\r\n")
    if not text:
        raise FieldError('an empty host; write an address such as "10.0.0.7" or a name')
    if "//" in text:
        raise FieldError(f"{shown(text)} is a URL; write its host alone")
    if text.startswith("["):
        raise FieldError("an address is written without brackets, and the port belongs to the route")
    try:
        return format_address(parse_address(text))
    except AddressError as error:
        if ":" in text:
            if text.count(":") == 1:
                raise FieldError(f"{shown(text)} has a port; the port belongs to the route") from None
            raise FieldError(f"{shown(text)} is {error}") from None
    name = text.removesuffix(".").lower()
    labels = name.split(".")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):  # some resolver will read it as an address (inet_aton)
        raise FieldError(f"{shown(text)} is neither an address nor a host name")
    if len(name) > 253 or not all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels):
        raise FieldError(f"{shown(text)} is neither an address nor a host name")
    return name


def port(text: str) -> int:
    """Decimal 1 to 65535 without leading zeros."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise FieldError(f"{shown(text)} is no port; write a number from 1 to 65535")
    return int(text)


def ports(text: str) -> frozenset[int] | None:
    """Ports with commas between them, as labels and annotations hold them; blank: any, None."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return frozenset(map(port, parts)) if parts else None


def token(text: str) -> str:
    """An access token less the white space around it; blank: none. It has to fit a header field's value."""
    text = text.strip()
    if text and not _TOKEN.fullmatch(text):
        raise FieldError("the token holds what no header can carry; use printable ASCII")
    return text


def upstream_host(text: str) -> str:
    """A value for the Host header: a name or an address (v6 in brackets), with a port or without; blank: none."""
    text = text.strip()
    if not text:
        return ""
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::([^:]*))?", text)
    name, _, number = text.partition(":")
    if bracketed:
        name, number = bracketed[1], bracketed[2] or ""
    try:
        if (text.endswith(":") and not bracketed) or (bracketed and ":" not in name):
            raise FieldError("")
        host(name)
        if number or (bracketed and bracketed[2] is not None):
            port(number)
    except FieldError:
        raise FieldError(
            f'{shown(text)} is no Host header; write one such as "localhost" or "localhost:8080"'
        ) from None
    return text
