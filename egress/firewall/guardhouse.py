"""The firewall of one network namespace: lock it, load it, teach it, watch it.

Not for two threads at once but for this: while the loop's thread writes learned addresses, the helper thread may
`load`, list `flows` and `cut`; they use sockets of their own.
"""

from __future__ import annotations

import socket

from egress.firewall import FirewallError, nft
from egress.firewall.lastdoor import COUNTER, let_in, netdev, restamp
from egress.firewall.loader import Loader
from egress.firewall.netlink import SetWriter, elements
from egress.firewall.nfnetlink import INET, NETDEV
from egress.firewall.ruleset import learned_set, lockdown, neighbours, render
from egress.firewall.shut import close_up, guarded, reopen, shut
from egress.firewall.standing import counter, judge, snapshot
from egress.firewall.tables import TABLE
from egress.netns import Namespace, secret
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from egress.firewall import nflog
    from egress.firewall.abilities import Capabilities
    from egress.firewall.conntrack import Flow
    from egress.firewall.nflog import Denied
    from egress.firewall.ruleset import RulesetSpec
    from egress.firewall.standing import Standing
    from egress.loop import Loop
    from egress.netns import Exemption

_DIGITS = "0123456789abcdef"


class Firewall:
    """One namespace's ruleset and everything that reads or feeds it."""

    def __init__(self, namespace: Namespace | None = None, *, prefix: bool = False) -> None:
        """`prefix` asks for the chain that covers all devices by one empty prefix: see `devices.py` for its price."""
        self.namespace = namespace or Namespace()
        self._loader = Loader(self.namespace, prefix=prefix)
        self._loaded: RulesetSpec | None = None
        self._stamp: Exemption | None = None  # not known of a ruleset that somebody else has loaded
        self._writer: SetWriter | None = None
        self._shut = False  # until a ruleset is complete
        self._watch: socket.socket | None = None
        self._log: nflog.Reader | None = None
        self.newcomers: Callable[[], object] = lambda: None
        """Called on the helper thread when devices may have come; again a second after it raised or returned True."""

    # -- the ruleset ---------------------------------------------------------------------------------------------
    def close_up(self) -> None:
        """For who is about to `load`: only loopback passes until then, unless an intact table of ours stands. Raises
        FirewallError."""
        self._shut = True  # or it is intact, and who loaded it was killed before he could open
        close_up(self._loader.desk, [device.name for device in self.namespace.devices()])
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
        self._loader.survey()
        if not anew and guarded(self._loader.desk):
            self._reopen()
            return False
        stamp = self._stamp = secret()
        self._shut = True
        shut(self._loader.desk)
        self._loader.load(lambda site, _: lockdown(site, stamp))
        self._reopen()
        return True

    def _reopen(self) -> None:
        if self._shut:
            reopen(self._loader.desk)
            self._shut = False

    def load(self, spec: RulesetSpec, *, sweep: bool = True) -> None:
        """Replace the ruleset by this one, learned addresses included, in one transaction. Blocks; for the helper
        thread. Raises FirewallError: then what stood before stands. Call `sweep` a moment later: packets that the old
        rules have let through may not have come to the last door yet. Without `sweep`, what only the old rules needed
        is still there too, and nothing uses it."""
        self._loader.survey()
        unseen = False
        if judge(snapshot(self._loader.desk)) is None:
            unseen, self._shut = self._shut, True
            shut(self._loader.desk)
            if not unseen:  # flows are open, and some will be allowed
                self._loader.load(lambda site, _: lockdown(site, spec.stamp, passing=True))
                self._reopen()
        before = None if self._stamp == spec.stamp else self._stamp
        stamp = None if spec.mode == "dns" else spec.stamp
        write = lambda site, apart: render(spec, site, before, apart)  # noqa: E731
        self._loader.load(write, f"{spec.flow_mark:08x}", stamp, unseen=unseen)
        self._stamp = spec.stamp
        self._loaded = spec
        self._reopen()
        if sweep:
            self._loader.sweep()

    def sweep(self) -> None:
        """Take away what a `load` left over, and let only what its rules stamp pass the last door. For the helper
        thread."""
        self._loader.sweep(self._stamp)

    def resume(self, spec: RulesetSpec) -> bool:
        """Go on with what an earlier worker loaded, if that is `spec` and stands whole. Raises FirewallError."""
        chains = snapshot(self._loader.reader)
        found = judge(chains)
        tag = f"_{spec.flow_mark:08x}"
        if found is None or (found.digest, found.mode) != (spec.digest, spec.mode):
            return False
        site = self._loader.survey()
        if not found.raw and spec.mode == "dns+nft" and site.raw != "none":
            return False
        # Chains of two loads: their worker died before it had swept, perhaps before it had written down the second's
        # secrets, so which of them is in use is not known.
        if {name[-9:] for _, name in chains if name[-9:-8] == "_" and not name[-8:].strip(_DIGITS)} != {tag}:
            return False
        self._loader.adopt(chains, tag if (INET, f"neighbours{tag}") in chains else "")
        self._stamp, self._loaded = spec.stamp, spec
        self._reopen()
        return True

    def standing(self) -> Standing | None:
        """The intact table of ours, or None."""
        return judge(snapshot(self._loader.reader))

    def intact(self) -> bool:
        """Does what was loaded last still stand? A fraction of a millisecond."""
        return self._loader.intact()

    def unstamped(self) -> int:
        """Packets that came to the last door without the stamp since it was written; each is a packet socket's."""
        try:
            return counter(self._loader.reader, NETDEV, COUNTER)
        except FirewallError:
            return 0  # no last door: mode `dns`, or a kernel without it

    def restamp(self) -> None:
        """Another stamp, against searching: call when `unstamped` grows by thousands. For the helper thread. Raises
        FirewallError."""
        site, before = self._loader.site, self._stamp
        if site is None or before is None or self._loaded is None or self._loaded.mode == "dns" or site.raw == "none":
            return
        stamp = secret()
        untouched = site._replace(raw="untouched")
        self._loader.change(let_in(stamp), untouched)
        self._loader.change(restamp(stamp, before), untouched)
        self._stamp = stamp
        if self._loader.door_stands(site):
            site = site._replace(raw="standing")
        self._loader.change("\n".join(netdev(site, stamp)) + "\n", site)

    def capabilities(self) -> Capabilities:
        """What holds here. Call after `lock` or `load`, which find out."""
        from egress.firewall.abilities import capabilities

        return capabilities(self._loader.survey(), self.namespace)

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
        for sock in (self._log, self._watch, self._writer):
            if sock is not None:
                sock.close()
        self._log = self._watch = self._writer = None
        self._loader.close()

    def rest(self) -> None:
        """Give back what only another change needs: libnftables keeps some 3 MB. For the helper thread."""
        self._loader.rest()

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

    def add_learned(self, index: int, packed: bytes, left: int) -> None:
        """`write_learned` of one address of a class that should not be there yet, for `left` milliseconds."""
        self._open_writer().put(learned_set(len(packed), index), packed, left)

    def learned(self, index: int) -> list[tuple[bytes, int]]:
        """What a class's sets hold: (packed, milliseconds left). Raises FirewallError (no such sets)."""
        return [
            (element.key, element.left or 0)
            for size in (4, 16)
            for element in elements(self._loader.reader, TABLE, learned_set(size, index))
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

        return [flow for flow in flows(self.namespace, self._loader.desk) if not ours(flow)]

    def cut(self, doomed: Sequence[Flow]) -> None:
        """Cut these flows for good: tuples, conntrack, sockets. Raises FirewallError."""
        from egress.firewall.conntrack import cut

        cut(self.namespace, self._loader.desk, doomed)

    def forget_redirects(self) -> None:
        """Queries redirected to ports of an earlier life are redirected anew. Raises FirewallError."""
        from egress.firewall.conntrack import forget_redirects

        spec = self._loaded
        if spec is not None:
            relay = () if spec.relay is None else (spec.relay.port4, spec.relay.port6)
            forget_redirects(self.namespace, self._loader.desk, (*spec.dns_ports, *relay))

    def severed(self) -> list[Flow]:
        """Flows that are held cut: each for a minute after the last packet that was stopped. Raises FirewallError."""
        from egress.firewall.conntrack import severed

        return severed(self._loader.desk)

    def lift(self, flows: Sequence[Flow]) -> None:
        """Let flows of `severed` go that the policy allows again: a peer that keeps trying would keep them cut."""
        from egress.firewall.conntrack import lift

        lift(self._loader.desk, flows)

    def active(self) -> set[bytes]:
        """Addresses outside that living flows lead to. Raises FirewallError."""
        from egress.firewall.conntrack import active

        return active(self.namespace, self._loader.desk)

    # -- watching ------------------------------------------------------------------------------------------------
    def watch_denied(self, loop: Loop, tell: Callable[[Denied], None]) -> None:
        """Call `tell` for each refused packet that the kernel logs; and follow devices and addresses meanwhile."""
        self.follow(loop)
        site = self._loader.site
        if site is not None and site.log_group:
            from egress.firewall import nflog

            try:
                self._log = nflog.watch(loop, self.namespace, site.log_group, tell)
            except (OSError, FirewallError):
                self._loader.site = site._replace(log_group=0)

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
        before, spec, tag = self._loader.site, self._loaded, self._loader.tag
        if before is None or spec is None or spec.mode != "dns+nft":
            return
        site = self._loader.look()
        open_door = site.raw == "devices" and not self._loader.door_stands(site)
        if not open_door and (site.own4, site.onlink6) == (before.own4, before.onlink6):
            self._loader.site = site
            return
        lines = []
        if self._stamp is not None and (open_door or site.own4 != before.own4):
            lines += netdev(site if open_door or site.raw != "devices" else site._replace(raw="standing"), self._stamp)
        if open_door or site.onlink6 != before.onlink6:
            lines.append(f"flush chain inet {TABLE} neighbours{tag}")
            lines += [f"add rule inet {TABLE} neighbours{tag} {rule}" for rule in neighbours(site)]
        if lines:
            self._loader.change("\n".join(lines) + "\n", site)
        self._loader.site = site

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
