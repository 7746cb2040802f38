"""IP addresses and prefixes on packed bytes, without the standard library's `ipaddress`.

The sidecar handles addresses as the kernel and DNS do: 4 or 16 packed bytes. `ipaddress` costs milliseconds at
start and microseconds per address, and is looser than a policy may be. Tests hold this against it.
An IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) is the IPv4 address inside, everywhere.
"""

from __future__ import annotations

from policies.values import NamedTuple

_MAPPED = b"\0" * 10 + b"\xff\xff"


class AddressError(ValueError):
    """Text that isn't an address or prefix; the message says what to write instead."""


class Network(NamedTuple):
    """A prefix: its first address packed, host bits clear, and its length in bits."""

    packed: bytes
    length: int

    @property
    def first(self) -> int:
        """The first address as a number."""
        return int.from_bytes(self.packed, "big")

    @property
    def last(self) -> int:
        """The last address as a number."""
        return self.first | ((1 << (len(self.packed) * 8 - self.length)) - 1)

    def contains(self, packed: bytes) -> bool:
        """Is the address of the same family inside."""
        return len(packed) == len(self.packed) and self.first <= int.from_bytes(packed, "big") <= self.last

    def __str__(self) -> str:
        """`10.0.0.0/8`; a single address without its length."""
        text = format_address(self.packed)
        return text if self.length == len(self.packed) * 8 else f"{text}/{self.length}"


def unmap(packed: bytes) -> bytes:
    """The IPv4 address inside a mapped one, anything else as it is."""
    return packed[12:] if len(packed) == 16 and packed.startswith(_MAPPED) else packed


def _parse4(text: str) -> bytes | None:
    """Four decimal numbers without leading zeros, else None."""
    try:
        octets = bytes(map(int, text.split(".")))
    except (ValueError, OverflowError):
        return None
    # What `int` takes besides, signs, spaces, other digits and leading zeros, is not what they are shown as.
    return octets if len(octets) == 4 and format_address(octets) == text else None


def _groups(text: str) -> list[int] | None:
    """Colon-separated groups of one to four hex digits as numbers; empty text is no group."""
    if not text:
        return []
    groups = []
    for part in text.split(":"):
        if not 1 <= len(part) <= 4 or any(digit not in "0123456789abcdefABCDEF" for digit in part):
            return None
        groups.append(int(part, 16))
    return groups


def _parse6(text: str) -> bytes | None:
    """RFC 4291, 2.2: all three forms. None for anything else."""
    if len(text) > 45:
        return None
    if "." in text:
        head, colon, tail = text.rpartition(":")
        four = _parse4(tail)
        if not colon or four is None:
            return None
        text = f"{head}:{four[0] << 8 | four[1]:x}:{four[2] << 8 | four[3]:x}"
    if "::" in text:
        before, after = text.split("::", 1)
        left, right = _groups(before), _groups(after)
        if left is None or right is None or len(left) + len(right) > 7:
            return None
        groups = left + [0] * (8 - len(left) - len(right)) + right
    else:
        whole = _groups(text)
        if whole is None or len(whole) != 8:
            return None
        groups = whole
    return b"".join(group.to_bytes(2, "big") for group in groups)


def _parse(text: str) -> bytes | None:
    return _parse6(text) if ":" in text else _parse4(text)


def parse_address(text: str) -> bytes:
    """An address as packed bytes, a mapped one as its 4 bytes. Raises AddressError."""
    packed = _parse(text)
    if packed is None:
        raise AddressError(_complaint(text))
    return unmap(packed)


def parse_network(text: str) -> Network:
    """An address or a prefix `address/length`; host bits are cleared. Raises AddressError.

    Errors: `/0` with host bits (somebody meant another length), mapped prefixes, zone ids, leading zeros, masks.
    """
    base, slash, suffix = text.partition("/")
    packed = _parse(base)
    if packed is None:
        raise AddressError(_complaint(base))
    if not slash:
        packed = unmap(packed)
        return Network(packed, len(packed) * 8)
    bits = len(packed) * 8
    if not (suffix.isascii() and suffix.isdigit()) or len(suffix) > 3:
        raise AddressError(f"not a prefix length after '/'; write 0 to {bits}, such as {format_address(packed)}/{bits}")
    if suffix[0] == "0" and suffix != "0":
        raise AddressError(f"prefix length with a leading zero; write /{int(suffix)}")
    length = int(suffix)
    if length > bits:
        raise AddressError(f"prefix length over {bits}; write 0 to {bits}")
    if packed.startswith(_MAPPED) and bits == 128 and length >= 96:
        inner = Network(clear(packed[12:], length - 96), length - 96)
        raise AddressError(f'an IPv4-mapped prefix; write the IPv4 one: "{inner}"')
    if length == 0 and any(packed):
        everything = "0.0.0.0/0" if bits == 32 else "::/0"
        raise AddressError(
            f'/0 covers every address, yet host bits are set; write "{everything}" or "{format_address(packed)}"'
        )
    return Network._make((clear(packed, length), length))


def clear(packed: bytes, length: int) -> bytes:
    """The address with all but its first `length` bits zero."""
    spare = len(packed) * 8 - length
    return (int.from_bytes(packed, "big") >> spare << spare).to_bytes(len(packed), "big")


def format_address(packed: bytes) -> str:
    """RFC 5952 text of 4 or 16 packed bytes; mapped addresses with the IPv4 part dotted."""
    if len(packed) == 4:
        return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}"
    if packed.startswith(_MAPPED):
        return "::ffff:" + format_address(packed[12:])
    groups = [packed[i] << 8 | packed[i + 1] for i in range(0, 16, 2)]
    best_start = best_length = 0
    start = 0
    while start < 8:
        end = start
        while end < 8 and groups[end] == 0:
            end += 1
        if end - start > best_length:
            best_start, best_length = start, end - start
        start = max(end, start + 1)
    if best_length < 2:  # RFC 5952, 4.2.2: one zero group stays as it is
        return ":".join(f"{group:x}" for group in groups)
    left = ":".join(f"{group:x}" for group in groups[:best_start])
    right = ":".join(f"{group:x}" for group in groups[best_start + best_length :])
    return f"{left}::{right}"


def _complaint(text: str) -> str:
    """What is wrong with text that isn't an address."""
    if "%" in text:
        return "zone ids have no meaning in a policy; write the address without '%'"
    if ":" in text:
        return 'not an IPv6 address; write one such as "2001:db8::1"'
    parts = text.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts):
        if any(len(part) > 1 and part[0] == "0" for part in parts):
            plain = ".".join(part.lstrip("0") or "0" for part in parts)
            if _parse4(plain) is None:
                return "not an IPv4 address; its numbers go from 0 to 255 without leading zeros"
            return f'leading zeros are read as octal by some programs; write "{plain}" if that is meant'
        return "not an IPv4 address; its numbers go from 0 to 255"
    return 'not an address; write one such as "192.0.2.1" or "2001:db8::1"'
