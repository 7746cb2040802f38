"""Which addresses the gateway dials: judged after resolution, and what was judged is what is dialled.

By default never: loopback, unspecified, link-local, multicast, reserved and metadata addresses, also where they are
written as IPv4-mapped, NAT64 or 6to4 ones, and the forms that could hide one (Teredo, IPv4-compatible, local NAT64).
`--allow-target` opens a range on purpose. The gateway's own listeners stay closed whatever is opened. Private addresses
are open: sandboxes live there.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from ingress.refusal import Refusal
from policies.address import AddressError, Network, format_address, parse_address, unmap
from policies.special import AddressClass, classify, inside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

KEPT = 5.0
"""Seconds for which a name's addresses are kept; a failure is kept for one."""
KEPT_FAILURE = 1.0
MOST_NAMES = 1_024
MOST_LOOKUPS = 64
"""Look-ups under way at once."""

OWN = "the gateway's own"

_SHUT = (AddressClass.SPECIAL, AddressClass.NEVER)
_HIDING = ("Teredo", "IPv4-compatible", "a local NAT64 address", "discard-only")
_LOOPBACK6 = b"\0" * 15 + b"\x01"


class Targets:
    """The check, and the names looked up lately. One per worker, on its event loop."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        own: Sequence[tuple[str, int]] = (),
        *,
        lookup: Callable[[str], Awaitable[list[str]]] | None = None,
        clock: Callable[[], float] | None = None,
        is_local: Callable[[bytes], bool] | None = None,
    ) -> None:
        """allowed: ranges opened on purpose. own: addresses ("" for all) and ports that this gateway listens on.

        lookup, clock and is_local stand in for the system's resolver, the loop's time and the kernel's addresses.
        """
        self._allowed = tuple(allowed)
        self._ports = frozenset(port for _, port in own)
        self._lookup = lookup or _system_lookup
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._is_local = is_local or is_local_address
        self._kept: dict[str, tuple[float, list[bytes] | None]] = {}
        self._running: dict[str, asyncio.Task[list[bytes] | None]] = {}

    def literal(self, host: str, port: int) -> str | None:
        """A literal address, checked, in its usual spelling; None for a name. Refusal 502 where it is shut."""
        try:
            packed = parse_address(host)
        except AddressError:
            return None
        why = self.why_not(packed, port)
        if why:
            raise _forbidden(why)
        return format_address(packed)

    async def resolve(self, host: str, port: int) -> list[str]:
        """A name's addresses that may be dialled, in the resolver's order, at least one; Refusal 502 without one."""
        kept = self._kept.get(host)
        if kept is not None and kept[0] > self._clock():
            found = kept[1]
        else:
            found = await self._shared(host)
        if not found:
            raise Refusal(502, "unresolved", "the sandbox's host name does not resolve at the moment", retry_after=1)
        why = ""
        good = []
        for packed in found:
            reason = self.why_not(packed, port)
            if reason:
                why = why or reason
            else:
                good.append(format_address(packed))
        if not good:
            raise _forbidden(why)
        return good

    def forget(self, host: str) -> None:
        """A sandbox of this name has another owner: what the name resolved to may be somebody else's by now."""
        self._kept.pop(host, None)

    def why_not(self, packed: bytes, port: int) -> str:
        """Why an address (4 or 16 packed bytes) may not be dialled on a port, in words for clients; "": it may."""
        packed = unmap(packed)
        if port in self._ports and self._reaches_us(packed):
            return OWN
        kind = classify(packed)
        shut = kind.address_class in _SHUT or (len(packed) == 16 and kind.label in _HIDING)
        if shut and not any(network.contains(packed) for network in self._allowed):
            return kind.label
        return ""

    def _reaches_us(self, packed: bytes) -> bool:
        if inside(packed) is not None:
            packed = inside(packed) or packed
        if len(packed) == 4:
            if packed[0] in (0, 127):  # 0.0.0.0 is how Linux also spells this host
                return True
        elif packed in (_LOOPBACK6, b"\0" * 16):
            return True
        return self._is_local(packed)

    async def _shared(self, host: str) -> list[bytes] | None:
        """One look-up at a time for each name; who waits for it may leave without ending it."""
        task = self._running.get(host)
        if task is None:
            if len(self._running) >= MOST_LOOKUPS:
                raise Refusal(503, "resolver_busy", "too many host names are being looked up; try again", retry_after=1)
            task = asyncio.ensure_future(self._look_up(host))
            self._running[host] = task
            task.add_done_callback(lambda _: self._running.pop(host, None))
        return await asyncio.shield(task)

    async def _look_up(self, host: str) -> list[bytes] | None:
        found: list[bytes] | None = None
        try:
            found = list(dict.fromkeys(_packed(text) for text in await self._lookup(host)))
        except (OSError, ValueError):  # no such name; or one that no resolver takes
            found = None
        if len(self._kept) >= MOST_NAMES:
            self._make_room()
        self._kept[host] = (self._clock() + (KEPT if found else KEPT_FAILURE), found)
        return found

    def _make_room(self) -> None:
        now = self._clock()
        self._kept = {host: entry for host, entry in self._kept.items() if entry[0] > now}
        while len(self._kept) >= MOST_NAMES:
            del self._kept[next(iter(self._kept))]


def is_local_address(packed: bytes) -> bool:
    """Is it an address of this host, by the kernel's word: to reach itself it would use itself. Nothing is sent."""
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((format_address(packed), 9))
            return _packed(probe.getsockname()[0]) == packed
    except OSError:
        return False


async def _system_lookup(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def _packed(text: str) -> bytes:
    return parse_address(text.partition("%")[0])


def _forbidden(why: str) -> Refusal:
    return Refusal(
        502,
        "forbidden_target",
        "this sandbox's address and port are the gateway's own: it does not send requests to itself"
        if why == OWN
        else f"this sandbox's address is {why}, where the gateway sends nothing; its operator opens it with "
        "--allow-target, where that is meant",
    )
