"""The firewall of one network namespace: lock it, load it, teach it, watch it.

Not for two threads at once but for this: while the loop's thread writes learned addresses, the helper thread may
`load`, list `flows` and `cut`; they use sockets of their own.
"""

from __future__ import annotations

import socket

from egress.firewall import FirewallError, devices, nft
from egress.firewall.intervals import fill
from egress.firewall.lastdoor import COUNTER, let_in, netdev, restamp
from egress.firewall.netlink import SetWriter, elements
from egress.firewall.nfnetlink import INET, NETDEV
from egress.firewall.ruleset import learned_set, lockdown, neighbours, render
from egress.firewall.shut import close_up, guarded, reopen, shut
from egress.firewall.standing import counter, inventory, judge, snapshot
from egress.firewall.tables import TABLE, Site
from egress.netns import NETLINK_NETFILTER, Namespace, secret
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from egress.firewall import nflog
    from egress.firewall.abilities import Capabilities
    from egress.firewall.conntrack import Flow
    from egress.firewall.nflog import Denied
    from egress.firewall.ruleset import RulesetSpec
    from egress.firewall.standing import Snapshot, Standing
    from egress.loop import Loop
    from egress.netns import Exemption

    Apart = dict[str, Sequence[tuple[bytes, bytes, str]]]  # what maps hold, by their names: see `render`
    Write = Callable[[Site, Apart | None], str]

_DIGITS = "0123456789abcdef"
LOG_GROUP = 5353  # NFLOG groups are the namespace's own


class Firewall:
    """One namespace's ruleset and everything that reads or feeds it."""

    def __init__(self, namespace: Namespace | None = None, *, prefix: bool = False) -> None:
        """`prefix` asks for the chain that covers all devices by one empty prefix: see `devices.py` for its price."""
        self.namespace = namespace or Namespace()
        self._prefix = prefix
        self._site: Site | None = None
        self._loaded: RulesetSpec | None = None
        self._stamp: Exemption | None = None  # not known of a ruleset that somebody else has loaded
        self._writer: SetWriter | None = None
        self._nft = nft.Nft()
        self._reader: socket.socket | None = None  # of the loop's thread
        self._clerk: socket.socket | None = None  # of the helper thread
        self._rubbish = ""  # the commands that take away what only the rules before needed
        self._ajar = False  # the last door lets the stamp before pass too
        self._tag = ""  # what the names of the last load's chains end in
        self._shut = False  # until a ruleset is complete
        self._busy = False  # our tables are being changed by ourselves
        self._snapshot: Snapshot = {}
        self._watch: socket.socket | None = None
        self._log: nflog.Reader | None = None
        self.newcomers: Callable[[], object] = lambda: None
        """Called on the helper thread when devices may have come; again a second after it raised or returned True."""

    # -- the ruleset ---------------------------------------------------------------------------------------------
    def close_up(self) -> None:
        """For who is about to `load`: only loopback passes until then, unless an intact table of ours stands. Raises
        FirewallError."""
        self._shut = True  # or it is intact, and who loaded it was killed before he could open
        close_up(self._desk(), [device.name for device in self.namespace.devices()])
        nft.load()

    def deny(self) -> None:
        """No ruleset will come: `lock` in its place, which says no instead of nothing. Shut all the same where that
        cannot be had."""
        try:
            self.lock()
        except (OSError, FirewallError):
            pass

    def lock(self, *, anew: bool = False) -> bool:
        """Deny-all, at once, unless an intact table of ours stands: then that is the lockdown and stays as it is
        (False), but with `anew`. Raises FirewallError; even then nothing passes that isn't loopback, if the kernel
        takes rules at all."""
        self._site = self._survey(self._site)
        if not anew and guarded(self._desk()):
            self._reopen()
            return False
        stamp = self._stamp = secret()
        self._shut = True
        shut(self._desk())
        self._apply(lambda site, _: lockdown(site, stamp))
        self._reopen()
        return True

    def _reopen(self) -> None:
        if self._shut:
            reopen(self._desk())
            self._shut = False

    def load(self, spec: RulesetSpec, *, sweep: bool = True) -> None:
        """Replace the ruleset by this one, learned addresses included, in one transaction. Blocks; for the helper
        thread. Raises FirewallError: then what stood before stands. Without `sweep`, call that later: what only the
        old rules needed is still there, and nothing uses it."""
        self._site = self._survey(self._site)
        unseen = False
        if self.standing() is None:
            unseen, self._shut = self._shut, True
            shut(self._desk())
            if not unseen:  # flows are open, and some will be allowed
                self._apply(lambda site, _: lockdown(site, spec.stamp, passing=True))
                self._reopen()
        before = None if self._stamp == spec.stamp else self._stamp
        stamp = None if spec.mode == "dns" else spec.stamp
        write = lambda site, apart: render(spec, site, before, apart)  # noqa: E731
        self._apply(write, f"{spec.flow_mark:08x}", stamp, unseen=unseen)
        self._stamp = spec.stamp
        self._loaded = spec
        self._reopen()
        if sweep:
            self.sweep()

    def sweep(self) -> None:
        """Take away what a `load` left over. For the helper thread."""
        rubbish, self._rubbish = self._rubbish, ""
        if self._site is None:
            return
        site, door = self._site._replace(raw="standing"), ""
        if self._ajar and self._stamp is not None and self._stands(self._site):
            door = "\n".join(netdev(site, self._stamp)) + "\n"
        self._ajar = False
        for text in (door + rubbish, door):  # the door closes even where a neighbour has touched the rest
            try:
                if text:
                    self._change(text, site)
                return
            except FirewallError:
                pass  # the next load finds it

    def resume(self, spec: RulesetSpec) -> bool:
        """Go on with what an earlier worker loaded, if that is `spec` and stands whole. Raises FirewallError."""
        chains = snapshot(self._open_reader())
        found = judge(chains)
        tag = f"_{spec.flow_mark:08x}"
        if found is None or (found.digest, found.mode) != (spec.digest, spec.mode):
            return False
        self._site = self._survey(self._site)
        if not found.raw and spec.mode == "dns+nft" and self._site.raw != "none":
            return False
        # Chains of two loads: their worker died before it had swept, perhaps before it had written down the second's
        # secrets, so which of them is in use is not known.
        if {name[-9:] for _, name in chains if name[-9:-8] == "_" and not name[-8:].strip(_DIGITS)} != {tag}:
            return False
        self._tag = tag if (INET, f"neighbours{tag}") in chains else ""
        self._stamp, self._loaded, self._snapshot = spec.stamp, spec, chains
        self._reopen()
        return True

    def standing(self) -> Standing | None:
        """The intact table of ours, or None."""
        return judge(snapshot(self._open_reader()))

    def intact(self) -> bool:
        """Does what was loaded last still stand? A fraction of a millisecond."""
        return self._busy or (bool(self._snapshot) and snapshot(self._open_reader()) == self._snapshot) or self._busy

    def unstamped(self) -> int:
        """Packets that came to the last door without the stamp since it was written; each is a packet socket's."""
        try:
            return counter(self._open_reader(), NETDEV, COUNTER)
        except FirewallError:
            return 0  # no last door: mode `dns`, or a kernel without it

    def restamp(self) -> None:
        """Another stamp, against searching: call when `unstamped` grows by thousands. For the helper thread. Raises
        FirewallError."""
        site, before = self._site, self._stamp
        if site is None or before is None or self._loaded is None or self._loaded.mode == "dns" or site.raw == "none":
            return
        stamp = secret()
        untouched = site._replace(raw="untouched")
        self._change(let_in(stamp), untouched)
        self._change(restamp(stamp, before), untouched)
        self._stamp = stamp
        if self._stands(site):
            site = site._replace(raw="standing")
        self._change("\n".join(netdev(site, stamp)) + "\n", site)

    def _stands(self, site: Site) -> bool:
        """Is the last door, if there is one, on all of its devices? Then it need not be made anew, which would drop
        what passes meanwhile. Devices that have come are put behind it first."""
        if site.raw != "devices":
            return site.raw == "prefix"
        try:
            return devices.cover(self._desk(), site.devices)
        except FirewallError:
            return False

    def _change(self, text: str, site: Site) -> None:
        done = False
        self._busy = True
        try:
            self._run(text, site)
            done = True
        finally:
            self._look_back(done=done)

    def _open_reader(self) -> socket.socket:
        if self._reader is None:
            self._reader = self.namespace.netlink(NETLINK_NETFILTER)
        return self._reader

    def _apply(self, write: Write, tag: str = "", stamp: Exemption | None = None, *, unseen: bool = False) -> None:
        believed = self._site or self._survey(None)
        done = False
        self._busy = True
        try:
            if tag and self._exchange(write, believed, tag, stamp):
                done = True
                return
            self._tag = self._rubbish = ""
            # The names are nobody's load's: a chain that nothing uses says whose it is, for `resume`.
            sign = f"add chain inet {TABLE} load_{tag}\n" if tag else ""
            try:
                self._replace(write, sign, believed, unseen=unseen)
            except FirewallError as error:
                site = self._negotiate(believed)
                if site == believed:
                    raise
                self._site = site
                try:
                    self._replace(write, sign, site, unseen=unseen)
                except FirewallError as again:
                    raise again from error
            done = True
        finally:
            self._look_back(done=done)

    def _replace(self, write: Write, sign: str, site: Site, *, unseen: bool) -> None:
        """All of it at once; `unseen`, while nothing passes, its maps a moment later."""
        apart: Apart | None = {} if unseen else None
        self._run(write(site, apart) + sign, site)
        if apart:
            fill(self._desk(), apart)

    def _look_back(self, *, done: bool) -> None:
        """What stands after a change of ours. After one that failed that is what should stand only if nothing is
        missing: a repair that was refused must not make a hole look whole."""
        try:
            seen = snapshot(self._desk())
            if done or self._snapshot.items() <= seen.items():
                self._snapshot = seen
        except (OSError, FirewallError):
            self._snapshot = {}  # not known, so not whole: it is loaded once more
        finally:
            self._busy = False

    def _exchange(self, write: Write, site: Site, tag: str, stamp: Exemption | None) -> bool:
        """Replace what stands in stages: no packet lost, none judged by half a ruleset. `stamp` is what the last door
        is to let pass, if there is to be one. False: it could not be."""
        chains = snapshot(self._desk())
        found = judge(chains)
        if found is None:
            return False
        from egress.firewall.replacement import stages  # not at start, which has nothing to replace

        open_first = ""
        if stamp is not None and found.raw and self._stands(site):
            open_first = let_in(stamp)
            site = site._replace(raw="untouched")
        apart: Apart = {}
        steps = stages(write(site, apart), tag, inventory(self._desk(), chains))
        try:
            self._run(steps.prepare + open_first, site)
            fill(self._desk(), apart, f"_{tag}")
            self._run(steps.switch, site)
        except FirewallError:
            return False  # whatever it was, the whole replacement says whether it matters
        self._tag = f"_{tag}"
        self._ajar = bool(open_first)
        self._rubbish = steps.sweep
        return True

    def _desk(self) -> socket.socket:
        """A netlink socket that stays open: closing one after a change waits for the kernel's clean-up."""
        if self._clerk is None:
            self._clerk = self.namespace.netlink(NETLINK_NETFILTER, receive=1 << 22)
        return self._clerk

    def _run(self, text: str, site: Site) -> None:
        if site.raw == "prefix":
            with self.namespace.netlink(NETLINK_NETFILTER) as sock:
                if not devices.make_prefix_chain(sock):
                    raise FirewallError("this kernel takes no prefix of device names")
        self.namespace.inside(lambda: self._nft.run(text))

    # -- the namespace -------------------------------------------------------------------------------------------
    def _survey(self, known: Site | None) -> Site:
        """The namespace as it is now; what the kernel can do is believed until it refuses."""
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

    def _negotiate(self, site: Site) -> Site:
        from egress.firewall.abilities import negotiate

        return negotiate(site, self.namespace, self._nft, LOG_GROUP)

    def assume(self, *, socket_match: bool = True, ct_timeout: bool = True) -> None:
        """Believe this of the kernel: for tests of what an older one gets."""
        self._site = self._survey(self._site)._replace(socket_match=socket_match, ct_timeout=ct_timeout)

    def capabilities(self) -> Capabilities:
        """What holds here. Call after `lock` or `load`, which find out."""
        from egress.firewall.abilities import Capabilities
        from egress.firewall.conntrack import can_destroy

        site = self._site = self._survey(self._site)
        ipv6 = any(address.packed == b"\0" * 15 + b"\1" for address in self.namespace.addresses())
        return Capabilities(
            site.raw,
            bool(site.log_group),
            site.ct_timeout,
            site.socket_match,
            site.ip_options,
            can_destroy(self.namespace),
            ipv6,
        )

    # -- learned addresses ---------------------------------------------------------------------------------------
    def reopen(self) -> None:
        """After a fork: netlink sockets of this process's own."""
        self.close()
        self._open_writer()

    def _open_writer(self) -> SetWriter:
        if self._writer is None:
            self._writer = SetWriter(self.namespace, TABLE)
        return self._writer

    def close(self) -> None:
        """Close every socket; the ruleset stands."""
        for sock in (self._reader, self._clerk, self._log, self._watch, self._writer):
            if sock is not None:
                sock.close()
        self._reader = self._clerk = self._log = self._watch = self._writer = None
        self._nft.close()

    def rest(self) -> None:
        """Give back what only another change needs: libnftables keeps some 3 MB. For the helper thread."""
        self._nft.close()

    def write_learned(self, classes: Mapping[int, Mapping[bytes, int]], *, new: bool = False) -> None:
        """class -> packed -> milliseconds, in one transaction, in the kernel when this returns; `new`: none of them
        should be there. Raises SetFull, FirewallError."""
        sets: dict[str, Mapping[bytes, int]] = {}
        for index, entries in classes.items():
            sizes = set(map(len, entries))
            for size in sizes:
                mine = entries
                if len(sizes) > 1:
                    mine = {packed: left for packed, left in entries.items() if len(packed) == size}
                sets[learned_set(size, index)] = mine
        self._open_writer().write(sets, new=new)

    def delete_learned(self, entries: Iterable[tuple[int, bytes]]) -> None:
        """(class, packed) each; what isn't there is no error. Raises FirewallError."""
        self._open_writer().delete([(learned_set(len(packed), index), packed) for index, packed in entries])

    def learned(self, index: int) -> list[tuple[bytes, int]]:
        """What a class's sets hold: (packed, milliseconds left). Raises FirewallError (no such sets)."""
        return [
            (element.key, element.left or 0)
            for size in (4, 16)
            for element in elements(self._open_reader(), TABLE, learned_set(size, index))
        ]

    # -- flows ---------------------------------------------------------------------------------------------------
    def flows(self) -> list[Flow]:
        """Every flow with an end outside, but for our own, for resolvers that are exempt and for redirected DNS: none
        of them is the policy's to judge. Raises FirewallError."""
        spec = self._loaded
        own = _endpoints(spec) if spec is not None else frozenset()
        exempt = frozenset(spec.exempt) if spec is not None else frozenset()

        def ours(flow: Flow) -> bool:
            if flow.redirected or (flow.remote_port == 53 and flow.remote in exempt):
                return True
            return not flow.mark and (flow.remote, flow.protocol, flow.remote_port) in own

        from egress.firewall.conntrack import flows

        return [flow for flow in flows(self.namespace, self._desk()) if not ours(flow)]

    def cut(self, doomed: Sequence[Flow]) -> None:
        """Cut these flows for good: tuples, conntrack, sockets. Raises FirewallError."""
        from egress.firewall.conntrack import cut

        cut(self.namespace, self._desk(), doomed)

    def forget_redirects(self) -> None:
        """Queries redirected to ports of an earlier life are redirected anew. Raises FirewallError."""
        from egress.firewall.conntrack import forget_redirects

        spec = self._loaded
        if spec is not None:
            relay = () if spec.relay is None else (spec.relay.port4, spec.relay.port6)
            forget_redirects(self.namespace, self._desk(), (*spec.dns_ports, *relay))

    def severed(self) -> list[Flow]:
        """Flows that are held cut: each for a minute after the last packet that was stopped. Raises FirewallError."""
        from egress.firewall.conntrack import severed

        return severed(self._desk())

    def lift(self, flows: Sequence[Flow]) -> None:
        """Let flows of `severed` go that the policy allows again: a peer that keeps trying would keep them cut."""
        from egress.firewall.conntrack import lift

        lift(self._desk(), flows)

    def active(self) -> set[bytes]:
        """Addresses outside that living flows lead to. Raises FirewallError."""
        from egress.firewall.conntrack import active

        return active(self.namespace, self._desk())

    # -- watching ------------------------------------------------------------------------------------------------
    def watch_denied(self, loop: Loop, tell: Callable[[Denied], None]) -> None:
        """Call `tell` for each refused packet that the kernel logs; and follow devices and addresses meanwhile."""
        self.follow(loop)
        if self._site is not None and self._site.log_group:
            from egress.firewall import nflog

            try:
                self._log = nflog.watch(loop, self.namespace, self._site.log_group, tell)
            except (OSError, FirewallError):
                self._site = self._site._replace(log_group=0)

    def follow(self, loop: Loop) -> None:
        """Keep the last door on every device, and ARP and neighbour discovery on every address, as they come."""
        sock = self._watch = self.namespace.watch()

        def ready() -> None:
            for _ in range(64):
                try:
                    if not sock.recv(1 << 16):
                        break
                except BlockingIOError:
                    break
                except OSError:
                    continue  # ENOBUFS: what was lost is found by the survey
            again()

        due = False

        def again() -> None:
            for work in (self.newcomers, self.refresh):
                loop.run_in_thread(work, lambda unwell, error: retry() if unwell or error is not None else None)

        def retry() -> None:
            nonlocal due
            if self._watch is sock and not due:
                due = True
                loop.call_later(1.0, later)

        def later() -> None:
            nonlocal due
            due = False
            again()

        loop.add_reader(sock.fileno(), ready)
        again()

    def unwatch(self, loop: Loop) -> None:
        """End `watch_denied` and `follow`: before `close` where the loop goes on."""
        for source in (self._watch, self._log.sock if self._log is not None else None):
            if source is not None:
                loop.remove_reader(source.fileno())
                source.close()
        self._watch = self._log = None

    def refresh(self) -> None:
        """Look at the namespace again and put what is new behind the last door; for the helper thread. Raises
        FirewallError."""
        before = self._site
        spec = self._loaded
        if before is None or spec is None or spec.mode != "dns+nft":
            return
        site = self._survey(before)
        open_door = site.raw == "devices" and not self._stands(site)
        if not open_door and (site.own4, site.onlink6) == (before.own4, before.onlink6):
            self._site = site
            return
        lines = []
        if self._stamp is not None and (open_door or site.own4 != before.own4):
            lines += netdev(site if open_door or site.raw != "devices" else site._replace(raw="standing"), self._stamp)
        if open_door or site.onlink6 != before.onlink6:
            lines.append(f"flush chain inet {TABLE} neighbours{self._tag}")
            lines += [f"add rule inet {TABLE} neighbours{self._tag} {rule}" for rule in neighbours(site)]
        if lines:
            self._change("\n".join(lines) + "\n", site)
        self._site = site

    # -- sockets -------------------------------------------------------------------------------------------------
    def udp(self, packed: bytes, port: int, exemption: Exemption) -> socket.socket:
        """A connected, exempted, non-blocking UDP socket on a random port."""
        return self.namespace.connect(packed, port, socket.SOCK_DGRAM, exemption)

    def tcp(self, packed: bytes, port: int, exemption: Exemption) -> socket.socket:
        """An exempted, non-blocking TCP socket that is connecting."""
        return self.namespace.connect(packed, port, socket.SOCK_STREAM, exemption)


def _endpoints(spec: RulesetSpec) -> frozenset[tuple[bytes, str, int]]:
    resolvers = [(packed, protocol, port) for packed, port in spec.upstreams for protocol in ("udp", "tcp")]
    return frozenset([*resolvers, *spec.own])
