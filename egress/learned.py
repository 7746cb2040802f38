"""What names have opened, in its three places: our leases, the kernel's sets, and where the next worker finds it."""

from __future__ import annotations

from egress.effect import NAMELESS
from egress.firewall.leases import SLACK, Leases, Teaching
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from egress.firewall.guardhouse import Firewall
    from egress.firewall.leases import Grant
    from egress.state import Handover
    from policies.ports import PortSet

    Taught = Sequence[tuple[bytes, Teaching]]


def by_class(leases: Leases, classes: Iterable[PortSet], now: float) -> dict[int, list[tuple[bytes, int]]]:
    """What a ruleset with these classes has to hold: class -> (packed, milliseconds left). `leases` count it as
    opened."""
    elements = leases.elements(now)
    return {index: elements[ports] for index, ports in enumerate(classes) if ports in elements}


class Learned:
    """The leases of now, which each policy replaces. Of the loop's thread."""

    def __init__(
        self,
        leases: Leases,
        firewall: Firewall,
        handover: Handover,
        taught: Callable[[Taught], None],
        report: Callable[[str], None],
    ) -> None:
        """`taught` hears what each answer has opened or renewed."""
        self.leases = leases
        self.batches = 0  # that the kernel has taken
        self._firewall = firewall
        self._handover = handover
        self._taught = taught
        self._report = report
        self._classes: dict[PortSet, int] = {}

    def replace(self, leases: Leases, classes: Iterable[PortSet]) -> None:
        """Another policy holds, with these classes of ports, and this is what is left under it."""
        self.leases = leases
        self._classes = {ports: index for index, ports in enumerate(classes)}

    # -- from an earlier life ------------------------------------------------------------------------------------
    def inherit(self, classes: Sequence[PortSet], now: float, *, same: bool) -> None:
        """Take over what an earlier worker wrote down; `same`: under the policy that these classes are of."""
        for packed, teaching in self._handover.leases():
            if teaching.name.startswith(NAMELESS):
                index = int(teaching.name[len(NAMELESS) :])
                if not same or index >= len(classes):
                    continue
                teaching = teaching._replace(ports=classes[index])
            if teaching.until > now:
                self.leases.restore(packed, teaching)

    def read_back(self, classes: Sequence[PortSet], now: float) -> None:
        """Take over what the kernel's sets hold: addresses and times, but no names. Raises FirewallError."""
        for index, ports in enumerate(classes):
            for packed, left in self._firewall.learned(index):
                until = now + left / 1000 - SLACK
                self.leases.restore(packed, Teaching(f"{NAMELESS}{index}", (), ports, until, now))

    # -- answers -------------------------------------------------------------------------------------------------
    def write(self, grants: Sequence[Grant]) -> None:
        """Into the kernel. Raises SetFull, FirewallError."""
        if len(grants) == 1:
            ((packed, ports, seconds, fresh, _),) = grants
            if fresh:  # what most answers come to
                self._firewall.add_learned(self._classes[ports], packed, int(seconds * 1000))
                self.batches += 1
                return
        classes: dict[int, dict[bytes, int]] = {}
        entries: dict[bytes, int] = {}
        last = None
        new = True
        for packed, ports, seconds, fresh, _ in grants:
            if ports is not last:  # as a rule the same: to hash it is what the rest comes to
                last = ports
                entries = classes.setdefault(self._classes[ports], {})
            entries[packed] = int(seconds * 1000)
            new = new and fresh
        self._firewall.write_learned(classes, new=new)
        self.batches += 1

    def note(self, grants: Sequence[Grant]) -> None:
        """Where the next worker finds them."""
        news = [(packed, teaching) for packed, _, _, _, teaching in grants if teaching is not None]
        self._taught(news)
        unwritten, self.leases.unwritten = self.leases.unwritten, []
        self._write_down(news + unwritten)

    def _write_down(self, teachings: Taught) -> None:
        if not self._handover.add_leases(teachings):
            self._handover.store_leases(self.leases)

    # -- time ----------------------------------------------------------------------------------------------------
    def shift(self, seconds: float, now: float) -> None:
        """The whole container stood still for so long: its leases go on from there."""
        self._renew(self.leases.shift(seconds, now), now)

    def used(self, active: Iterable[bytes], now: float) -> None:
        """Flows lead to these addresses: their leases go on. Others that have ended are forgotten."""
        self.leases.used(active, now)
        self._renew(self.leases.renewals(now), now)
        self.leases.expire(now)

    def _renew(self, grants: Sequence[Grant], now: float) -> None:
        if not grants:
            return
        try:
            self.write(grants)
        except Exception as error:  # noqa: BLE001 - the old elements stand until their time; the next sweep tries again
            self._report(f"leases could not be renewed: {error}")
            return
        self.leases.granted(grants, now)
        self._write_down([one for grant in grants for one in self.leases.named(grant.packed)])

    # -- reading -------------------------------------------------------------------------------------------------
    def names_of(self, packed: bytes) -> tuple[str, ...]:
        """The names whose answers led to this address."""
        return tuple(name for name in self.leases.names_of(packed) if not name.startswith(NAMELESS))
