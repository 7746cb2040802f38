"""Puts texts of rules into the kernel, and knows whether what it put there still stands.

What stands is replaced in stages where that can be had (`replacement.py`), else all at once. Of a kernel the best is
believed until it refuses something: then it is asked what it can (`abilities.py`), once.
"""

from __future__ import annotations

from egress.firewall import FirewallError, devices, nft
from egress.firewall.intervals import fill
from egress.firewall.lastdoor import is_ajar, let_in, netdev
from egress.firewall.nfnetlink import NETDEV
from egress.firewall.standing import inventory, judge, snapshot
from egress.firewall.tables import TABLE, Site
from egress.netns import NETLINK_NETFILTER
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from egress.firewall.standing import Snapshot
    from egress.netns import Exemption, Namespace

    Apart = dict[str, Sequence[tuple[bytes, bytes, str]]]  # what maps hold, by their names: see `ruleset.render`
    Write = Callable[[Site, Apart | None], str]

LOG_GROUP = 5353  # NFLOG groups are the namespace's own


class Loader:
    """One namespace's tables of ours. For the helper thread, but for `reader` and `intact`: these are the loop's."""

    def __init__(self, namespace: Namespace, *, prefix: bool) -> None:
        """`prefix`: see `devices.py`."""
        self.namespace = namespace
        self.site: Site | None = None  # as the last text was written for
        self.tag = ""  # what the names of the last load's chains end in
        self._prefix = prefix
        self._nft = nft.Nft()
        self._reader: socket.socket | None = None
        self._desk: socket.socket | None = None
        self._rubbish = ""  # the commands that take away what only the rules before needed
        self._ajar = False  # the last door lets the stamp before pass too
        self._busy = False  # our tables are being changed by ourselves
        self._snapshot: Snapshot = {}

    # -- what there is -------------------------------------------------------------------------------------------
    @property
    def reader(self) -> socket.socket:
        """A netlink socket of the loop's thread."""
        if self._reader is None:
            self._reader = self.namespace.netlink(NETLINK_NETFILTER)
        return self._reader

    @property
    def desk(self) -> socket.socket:
        """A netlink socket that stays open: closing one after a change waits for the kernel's clean-up."""
        if self._desk is None:
            self._desk = self.namespace.netlink(NETLINK_NETFILTER, receive=1 << 22)
        return self._desk

    def survey(self) -> Site:
        """The namespace as it is now is what the next text is written for."""
        self.site = self.look()
        return self.site

    def look(self) -> Site:
        """The namespace as it is now; what the kernel can do is believed until it refuses."""
        known = self.site
        addresses = self.namespace.addresses()
        site = known or Site(raw="prefix" if self._prefix else "devices", log_group=LOG_GROUP)
        names = dict.fromkeys(["lo"] + [device.name for device in self.namespace.devices()])
        # Once more only where the kernel has taken names of devices that are not there.
        if site.raw == "devices" and (known is None or set(devices.LIKELY) & set(known.devices) - set(names)):
            names.update(dict.fromkeys(devices.LIKELY))
        return site._replace(
            devices=tuple(names)[: devices.MOST],
            own4=tuple(a.packed for a in addresses if len(a.packed) == 4 and a.packed[0] != 127),
            onlink6=self.namespace.onlink6(),
        )

    def intact(self) -> bool:
        """Does what was loaded last still stand? A fraction of a millisecond."""
        return self._busy or (bool(self._snapshot) and snapshot(self.reader) == self._snapshot) or self._busy

    def door_stands(self, site: Site) -> bool:
        """Is the last door, if there is one, on all of its devices? Then it need not be made anew, which would drop
        what passes meanwhile. Devices that have come are put behind it first."""
        if site.raw != "devices":
            return site.raw == "prefix"
        try:
            return devices.cover(self.desk, site.devices)
        except FirewallError:
            return False

    # -- changes -------------------------------------------------------------------------------------------------
    def adopt(self, chains: Snapshot, tag: str) -> None:
        """An earlier worker's load, by what ends the names of its chains, is taken for ours, `survey` first."""
        assert self.site is not None
        self._snapshot, self.tag = chains, tag
        self._ajar = is_ajar(self.site, chains.get((NETDEV, "egress"), (0, 0, 0))[2])

    def load(self, write: Write, mark: str = "", stamp: Exemption | None = None, *, unseen: bool = False) -> None:
        """Replace what stands by the text of `write`, `survey` first. Raises FirewallError.

        `mark` is a policy's flow mark in eight digits: in the place of another, its text comes in stages, and `stamp`
        is what the last door is to let pass then, if there is to be one. `unseen` says that nothing passes meanwhile.
        """
        assert self.site is not None
        done = False
        self._busy = True
        try:
            if mark and self._exchange(write, self.site, mark, stamp):
                done = True
                return
            self.tag = self._rubbish = ""
            # The names are nobody's load's: a chain that nothing uses says whose it is, for `resume`.
            sign = f"add chain inet {TABLE} load_{mark}\n" if mark else ""
            try:
                self._replace(write, sign, unseen=unseen)
            except FirewallError as error:
                if not self._negotiate():
                    raise
                try:
                    self._replace(write, sign, unseen=unseen)
                except FirewallError as again:
                    raise again from error
            done = True
        finally:
            self._look_back(done=done)

    def change(self, text: str, site: Site) -> None:
        """Change what stands; `site` is what the text was written for. Raises FirewallError."""
        done = False
        self._busy = True
        try:
            self._run(text, site)
            done = True
        finally:
            self._look_back(done=done)

    def sweep(self, stamp: Exemption | None = None) -> None:
        """Take away what a `load` left over; with `stamp`, nothing else passes the last door then."""
        rubbish, self._rubbish = self._rubbish, ""
        if self.site is None:
            return
        rested = not self._nft.opened
        site, door = self.site._replace(raw="standing"), ""
        if self._ajar and stamp is not None and self.door_stands(self.site):
            door = "\n".join(netdev(site, stamp)) + "\n"
        if stamp is not None:
            self._ajar = False
        for text in (door + rubbish, door):  # the door closes even where a neighbour has touched the rest
            try:
                if text:
                    self.change(text, site)
                break
            except FirewallError:
                pass  # the next load finds it
        if rested:
            self.rest()

    def rest(self) -> None:
        """Give back what only another change needs: libnftables keeps some 3 MB."""
        self._nft.close()

    def close(self) -> None:
        """Close every socket; what is loaded stands."""
        for sock in (self._reader, self._desk):
            if sock is not None:
                sock.close()
        self._reader = self._desk = None
        self._nft.close()

    def _negotiate(self) -> bool:
        """Find out what the kernel takes; False where that is nothing new."""
        from egress.firewall.abilities import negotiate

        believed = self.site
        assert believed is not None
        self.site = negotiate(believed, self.namespace, self._nft, LOG_GROUP)
        return self.site != believed

    def _replace(self, write: Write, sign: str, *, unseen: bool) -> None:
        """All of it at once; `unseen`, its maps a moment later."""
        assert self.site is not None
        apart: Apart | None = {} if unseen else None
        self._run(write(self.site, apart) + sign, self.site)
        if apart:
            fill(self.desk, apart)

    def _exchange(self, write: Write, site: Site, mark: str, stamp: Exemption | None) -> bool:
        """Replace what stands in stages: no packet lost, none judged by half a ruleset. False: it could not be."""
        chains = snapshot(self.desk)
        found = judge(chains)
        if found is None:
            return False
        from egress.firewall.replacement import stages  # not at start, which has nothing to replace

        open_first = ""
        if stamp is not None and found.raw and self.door_stands(site):
            open_first = let_in(stamp)
            site = site._replace(raw="untouched")
        apart: Apart = {}
        steps = stages(write(site, apart), mark, inventory(self.desk, chains))
        try:
            self._run(steps.prepare + open_first, site)
            fill(self.desk, apart, f"_{mark}")
            self._run(steps.switch, site)
        except FirewallError:
            return False  # whatever it was, the whole replacement says whether it matters
        self.tag = f"_{mark}"
        self._ajar = bool(open_first)
        self._rubbish = steps.sweep
        return True

    def _run(self, text: str, site: Site) -> None:
        if site.raw == "prefix":
            with self.namespace.netlink(NETLINK_NETFILTER) as sock:
                if not devices.make_prefix_chain(sock):
                    raise FirewallError("this kernel takes no prefix of device names")
        self.namespace.inside(lambda: self._nft.run(text))

    def _look_back(self, *, done: bool) -> None:
        """What stands after a change of ours. After one that failed that is what should stand only if nothing is
        missing: a repair that was refused must not make a hole look whole."""
        try:
            seen = snapshot(self.desk)
            if done or self._snapshot.items() <= seen.items():
                self._snapshot = seen
        except (OSError, FirewallError):
            self._snapshot = {}  # not known, so not whole: it is loaded once more
        finally:
            self._busy = False
