"""PROXY protocol headers, versions 1 and 2: who the client is, said by the load balancer in front. Pure.

haproxy's specification, doc/proxy-protocol.txt: v1 is one line of at most 107 octets (section 2.1), v2 is binary with
its length at a fixed place (section 2.2). `parse` says how many octets belong to the header, so that whoever reads can
leave what follows in the socket: a TLS handshake, or a request.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from policies.address import AddressError, format_address, parse_address, unmap

V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1_SHORTEST = len("PROXY UNKNOWN\r\n")
V1_LONGEST = 107
V2_LONGEST = 4096
"""Octets of a v2 header with what comes after the addresses; certificates of a client may be long, but not so long."""
LONGEST = max(V1_LONGEST, V2_LONGEST)

_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")
_V1 = b"PROXY "
_NOT_ENDED = "a PROXY v1 line that does not end with CR LF"
_LOCAL, _PROXY = 0, 1
_UNSPEC, _INET, _INET6, _UNIX = 0, 1, 2, 3
_DGRAM = 2


class Header(NamedTuple):
    """A whole header. size: its octets. address, port: the client's; "" and 0: not told, take the connection's own."""

    size: int
    address: str
    port: int


class BadHeader(ValueError):
    """What came first is no PROXY header, or not one that can be used; the text says why."""


def parse(data: bytes) -> Header | int:
    """A header at the beginning of `data`, or at least how many octets are needed to say more (above len(data)).

    Raises BadHeader as soon as what is there can't become a header.
    """
    if data[:1] == b"P":
        return _parse_v1(data)
    if data.startswith(V2_SIGNATURE):
        return _parse_v2(data)
    if not data:
        return V1_SHORTEST
    if V2_SIGNATURE.startswith(data):
        return len(V2_SIGNATURE) + 4
    raise BadHeader("no PROXY header, which this peer has to send first")


def _parse_v1(data: bytes) -> Header | int:
    if not data.startswith(_V1[: len(data)]):
        raise BadHeader("no PROXY header, which this peer has to send first")
    end = data.find(b"\r\n", 0, V1_LONGEST)
    if end < 0:
        if len(data) >= V1_LONGEST:
            raise BadHeader(f"a PROXY v1 line of more than {V1_LONGEST} octets")
        if b"\n" in data or b"\r" in data[:-1]:
            raise BadHeader(_NOT_ENDED)
        return len(data) + 1
    if b"\n" in data[:end] or b"\r" in data[:end]:
        raise BadHeader(_NOT_ENDED)  # as it would have been said of its beginning, had that come alone
    size = end + 2
    words = data[:end].split(b" ")
    if len(words) > 1 and words[1] == b"UNKNOWN":
        return Header(size, "", 0)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise BadHeader("a PROXY v1 line that is not `PROXY TCP4|TCP6 source destination port port`")
    length = 4 if words[1] == b"TCP4" else 16
    source = _v1_address(words[2], length)
    _v1_address(words[3], length)
    ports = [_v1_port(words[4]), _v1_port(words[5])]
    return Header(size, source, ports[0])


def _v1_address(word: bytes, length: int) -> str:
    text = word.decode("latin-1")
    if (length == 16) != (":" in text):
        raise BadHeader("an address of the wrong family in a PROXY v1 line")
    try:
        return format_address(parse_address(text))
    except AddressError:
        raise BadHeader("no address where one has to be in a PROXY v1 line") from None


def _v1_port(word: bytes) -> int:
    if not _PORT.fullmatch(word) or int(word) > 65535:
        raise BadHeader("no port where one has to be in a PROXY v1 line")
    return int(word)


def _parse_v2(data: bytes) -> Header | int:
    if len(data) < 16:
        return 16
    version, command = data[12] >> 4, data[12] & 15
    family, transport = data[13] >> 4, data[13] & 15
    size = 16 + int.from_bytes(data[14:16], "big")
    if version != 2:
        raise BadHeader(f"a PROXY header of version {version}; 1 and 2 are known")
    if command not in (_LOCAL, _PROXY) or family > _UNIX or transport > _DGRAM:
        raise BadHeader("a PROXY v2 header with a command, family or transport that the protocol does not have")
    if size > V2_LONGEST:
        raise BadHeader(f"a PROXY v2 header of {size} octets; at most {V2_LONGEST} are taken")
    if len(data) < size:
        return size
    if command == _LOCAL or family in (_UNSPEC, _UNIX) or transport != 1:
        return Header(size, "", 0)  # a health check of the balancer's own, or nothing that an address here can be
    length = 4 if family == _INET else 16
    if size < 16 + 2 * length + 4:
        raise BadHeader("a PROXY v2 header that is too short for its addresses")
    packed = data[16 : 16 + length]
    port = int.from_bytes(data[16 + 2 * length : 18 + 2 * length], "big")
    return Header(size, format_address(unmap(packed)), port)  # spelt as version 1 spells it
