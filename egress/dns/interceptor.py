"""What to do with a query and with an answer. Pure: no sockets, no clock; time and policy are arguments.

    on_query ─▶ bytes (the reply: denied, nothing there, from the cache) or Ask (a question for the resolvers)
    on_answer ─▶ Outcome: the records that may be passed on, and the addresses they teach

Only what hangs on the chain from the asked name counts. A CNAME may lead through names without a rule (that is what
CDNs are), but an explicit deny of a link stops it. Addresses that a name may never teach are taken out.
"""

from __future__ import annotations

from egress.dns import wire
from egress.dns.answer import scrub_svcb
from egress.dns.cache import Cache, weight
from egress.dns.straight import shape
from policies.matcher import Teach
from policies.model import Action
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.dns.answer import Answer
    from egress.dns.budget import Account, Budget
    from egress.dns.straight import Plain, Shape
    from egress.dns.wire import Query, Record
    from policies.matcher import CompiledPolicy
    from policies.model import Decision
    from policies.ports import PortSet

A, NS, CNAME, SOA, PTR, MX, TXT, AAAA, SRV, NAPTR, SSHFP, TLSA, SVCB, HTTPS, CAA = (
    1, 2, 5, 6, 12, 15, 16, 28, 33, 35, 44, 52, 64, 65, 257,
)  # fmt: skip
USEFUL = frozenset((A, NS, CNAME, SOA, PTR, MX, TXT, AAAA, SRV, NAPTR, SSHFP, TLSA, SVCB, HTTPS, CAA))
NOERROR, SERVFAIL, NXDOMAIN = 0, 2, 3
BLOCKED, NO_REACHABLE_AUTHORITY, INVALID_DATA, NOT_READY = 15, 22, 24, 14  # EDE codes, RFC 8914
DENIED_TTL = 5  # seconds a client may remember a denial: a patched policy shows soon
LINKS = 16  # CNAMEs in one answer
TAUGHT = 4096  # addresses whose class is remembered
WAYS = 1024  # that are remembered
SHAPES = 256  # that these share
NEGATIVE_MOST = 300  # seconds a negative answer is kept
HINTS = ("resolver.arpa", "use-application-dns.net")  # RFC 9462; Firefox's canary: never yes, whatever the rules


class Ask(NamedTuple):
    """A question for the resolvers, with the decision that allowed it."""

    query: Query
    decision: Decision


class Denial(NamedTuple):
    """A name that was refused, for the log, the webhook and the counters."""

    name: str
    qtype: int
    reason: str
    rule: str
    expansion: bool  # an allowed name with a search domain behind it: nobody meant to ask this
    budget: str = ""  # the zone of an allowed name whose budget is used up


class Way(NamedTuple):
    """What is known of every ordinary query that differs from one that was asked in id, first label and case only.

    It is kept as a `mere` tuple, as are Named and the shapes in them.
    """

    suffix: str  # ".example.com"
    tail: bytes  # of our question: all of it behind the first label
    last: int  # where the parent begins behind the longest first label
    ports: PortSet  # what the names open
    account: Account | None  # who pays for them
    whole: bool  # all that stands in front of the suffix is paid for
    qtype: int  # these two as in the shape
    limit: int
    shape: Shape


class Named(NamedTuple):
    """What is known of one ordinary query for a name that a rule names."""

    key: tuple[str, int]  # name and type
    body: bytes  # our question section
    ports: PortSet  # what the name opens
    shape: Shape


class Outcome(NamedTuple):
    """What an answer comes to. `denied` set: the client gets a denial; else the records with `rcode`."""

    rcode: int
    records: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()
    teaches: tuple[tuple[bytes, int], ...] = ()  # packed address, TTL
    ports: PortSet | None = None
    chain: tuple[str, ...] = ()
    ttl: int = 0  # seconds it may be cached
    denied: str = ""  # the reason, for the EDE
    note: str = ""  # EDE text for what was left out
    ede: int | None = None  # with rcode NOERROR: nothing is left, the client gets NODATA
    rule: str = ""  # origin of the rule that denied


LEARN = Teach.LEARN  # looked up once: an enum's member costs more than a global
_BROKEN = "the answer's CNAMEs contradict each other, loop or are too many"


class Interceptor:
    """The decisions of one policy generation."""

    def __init__(
        self,
        policy: CompiledPolicy,
        generation: int,
        denied: Callable[[Denial], None],
        budget: Budget | None = None,
    ) -> None:
        self.policy = policy
        self.generation = generation
        self.cache = Cache()
        self.same_until = 0.0
        self._shapes: dict[Shape, Shape] = {}
        self.ways: dict[
            bytes, Way
        ] = {}  # by the octets from the third on, in lower case behind the header, without the first label
        self.named: dict[bytes, Named] = {}  # by the octets from the third on: names have few spellings in practice
        self.exact = policy.exact_names
        self.taught: dict[bytes, Teach] = {}
        self._denied = denied
        self._budget = budget

    # -- queries -------------------------------------------------------------------------------------------------
    def on_query(self, query: Query, now: float, limit: int) -> bytes | Ask:
        """Decide; after it `same_until` says how long the same bytes may be answered the same way."""
        self.same_until = 0.0
        name = query.name
        if not query.plain:
            return self._deny(query, f"{name}: a query name has letters, digits, hyphens and underscores only")
        if name.endswith(HINTS) and any(name == hint or name.endswith("." + hint) for hint in HINTS):
            return self._deny(query, f"{name}: the guard is the only resolver here")
        decision = self.policy.decide_name(name)
        if decision.action is not Action.ALLOW:
            return self._deny(query, f"{name}: {decision.reason}", _origin(decision))
        if query.qtype not in USEFUL:
            return wire.nodata(query, DENIED_TTL, BLOCKED, f"{name}: type {query.qtype} is not answered here")
        entry = self.cache.get(name, query.qtype, now)
        if entry is not None:
            self.same_until = min(entry.until, entry.born + int(now - entry.born) + 1)  # until the TTL is one less
            return entry.serve(query, now, limit)
        if self._budget is not None:
            account = self._budget.admits(self.policy, name, decision, now)
            if account is not None:
                self._denied(Denial(name, query.qtype, account.reason, _origin(decision), False, account.zone))
                return wire.denied(query, DENIED_TTL, BLOCKED, f"{name}: {decision.reason}, {account.reason}")
        return Ask(query, decision)

    def _deny(self, query: Query, reason: str, rule: str = "") -> bytes:
        self._denied(Denial(query.name, query.qtype, reason, rule, self._is_expansion(query.name)))
        return wire.denied(query, DENIED_TTL, BLOCKED, reason)

    def _is_expansion(self, name: str) -> bool:
        """Stub resolvers append their search domains (Kubernetes' ndots:5) before they ask for what was meant."""
        end = name.rfind(".")
        for _ in range(5):  # svc.cluster.local has three labels, the longest usual search domain five
            if end <= 0:
                return False
            decision = self.policy.decide_name(name[:end])
            if decision.action is Action.ALLOW and decision.rule is not None and decision.rule.kind != "any":
                return True
            end = name.rfind(".", 0, end)
        return False

    def deny_link(self, query: Query, outcome: Outcome) -> bytes:
        """The reply for a chain that a deny rule stops: the same as for a denied name."""
        return self._deny(query, outcome.denied, outcome.rule)

    # -- the straight path -----------------------------------------------------------------------------------------
    def learn_way(self, data: bytes, query: Query, limit: int, ports: PortSet, body: bytes) -> None:
        """Remember in `ways` what was decided about `data`, which was read as `query` and is asked for with `body`.

        Only where all plain names of the same parent are allowed alike: `exact` names have rules of their own and go
        into `named`, and beside HINTS each name has to be looked at.
        """
        if query.name in self.exact:
            self._learn_name(data, query, limit, ports, body)
            return
        first, _, parent = query.name.partition(".")
        if not parent or any(_related(parent, hint) for hint in HINTS):
            return
        decision = self.policy.decide_below(parent)
        if decision.action is not Action.ALLOW:
            return
        found = shape(data, query, limit)
        if found is None:
            return
        alike, account = (True, None) if self._budget is None else self._budget.below(parent, decision)
        if not alike:
            return
        if len(self.ways) >= WAYS:
            self.ways.clear()
        ordinary, at = found
        tail = query.question[len(first) + 1 : -4].lower() + query.question[-4:]
        last = 12 + min(64, 259 - len(tail))  # labels have 63 octets, names 255 (RFC 1035 §2.3.4)
        whole = account is not None and account.zone == parent
        way = Way("." + parent, tail, last, decision.ports, account, whole, query.qtype, limit, self._shared(ordinary))
        self.ways[data[2:12] + data[at:].lower()] = wire.mere(way)

    def _learn_name(self, data: bytes, query: Query, limit: int, ports: PortSet, body: bytes) -> None:
        """An exact name costs no budget, but for one that is another name with a search domain behind it."""
        if self._budget is not None and self._budget.is_expansion(query.name):
            return
        found = shape(data, query, limit)
        if found is None:
            return
        if len(self.named) >= WAYS:
            self.named.clear()
        self.named[data[2:]] = wire.mere(Named((query.name, query.qtype), body, ports, self._shared(found[0])))

    def _shared(self, found: Shape) -> Shape:
        if len(self._shapes) >= SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(found, wire.mere(found))

    def teaches_all(self, addresses: tuple[tuple[bytes, int], ...]) -> bool:
        """May an allowed name teach all of these? With exceptions it is `on_answer` that decides."""
        taught = self.taught
        for packed, _ in addresses:  # noqa: SIM110 - a generator costs twice as much
            if (taught.get(packed) or self.verdict(packed)) is not LEARN:
                return False
        return True

    # -- answers -------------------------------------------------------------------------------------------------
    def on_answer(self, name: str, qtype: int, answer: Answer) -> Outcome:
        """Decide about an answer under the policy as it is now."""
        decision = self.policy.decide_name(name)
        if decision.action is not Action.ALLOW:
            return Outcome(NXDOMAIN, denied=f"{name}: {decision.reason}", rule=_origin(decision))
        rcode = answer.rcode
        if answer.truncated or (rcode != NOERROR and rcode != NXDOMAIN):
            note = "answered in part only" if answer.truncated else f"answered with rcode {rcode}"
            return Outcome(SERVFAIL, note=f"{name}: the resolver {note}", ede=NO_REACHABLE_AUTHORITY)
        ports = decision.ports
        if qtype != CNAME:
            for record in answer.answers:
                if record.rtype != qtype or record.owner != name:
                    break
            else:
                return self._teach(name, qtype, answer, (), answer.answers, ports, ())
        return self._follow(name, qtype, answer, ports)

    def _follow(self, name: str, qtype: int, answer: Answer, ports: PortSet) -> Outcome:
        """Walk the CNAMEs from the asked name; what lies beside the chain does not count (RFC 2181 §10.1)."""
        targets: dict[str, str] = {}
        links: dict[str, Record] = {}
        twice: set[str] = set()
        for record in answer.answers:
            if record.rtype == CNAME:
                owner = record.owner
                target = wire.cname_target(record.rdata)
                if targets.setdefault(owner, target) != target:
                    twice.add(owner)
                if links.setdefault(owner, record).ttl > record.ttl:
                    links[owner] = record
        kept: list[Record] = []
        chain: list[str] = []
        seen = {name}
        current = name
        stop: Decision | None = None
        stopped_at = ""
        while current in targets:
            target = targets[current]
            if current in twice or target in seen or len(chain) == LINKS:
                return Outcome(SERVFAIL, note=f"{name}: {_BROKEN}", ede=INVALID_DATA)
            kept.append(links[current])
            chain.append(target)
            seen.add(target)
            denial = self.policy.chain_deny(target)
            if denial is not None:
                stop, stopped_at = denial, target
                ports = ports.minus(denial.ports)
                if not (ports.tcp or ports.udp):  # echo alone is as good as nothing: the same holds for the asked name
                    return _stopped(name, target, denial)
            current = target
            if qtype == CNAME:
                break
        if stop is not None:
            ports = self.policy.learnable(ports)
            if not ports:
                return _stopped(name, stopped_at, stop)
        if qtype == CNAME:
            return self._teach(name, qtype, answer, tuple(kept), (), ports, tuple(chain))
        own = tuple(record for record in answer.answers if record.rtype == qtype and record.owner == current)
        return self._teach(name, qtype, answer, tuple(kept), own, ports, tuple(chain))

    def _teach(
        self, name: str, qtype: int, answer: Answer, links: tuple[Record, ...], own: tuple[Record, ...],
        ports: PortSet, chain: tuple[str, ...],
    ) -> Outcome:  # fmt: skip
        teaches: list[tuple[bytes, int]] = []
        note = ""
        ede = None
        if answer.rcode != NOERROR:
            own = ()
        elif len(own) > 1 and (len(own) > 2 or own[0].rdata == own[1].rdata):
            own = _unrepeated(own)
        if qtype in (A, AAAA) and own:
            kept = []
            taught = self.taught
            for record in own:
                packed = record.rdata
                if packed[:12] == _MAPPED:
                    packed = packed[12:]
                verdict = taught.get(packed) or self.verdict(packed)
                if verdict is Teach.STRIP:
                    note = f"{name}: {printable(packed)} is a special address; only an IP rule opens it"
                    ede = BLOCKED
                    continue
                if verdict is Teach.LEARN:
                    teaches.append((packed, record.ttl))
                kept.append(record)
            own = tuple(kept)
        elif qtype in (SVCB, HTTPS) and own:
            scrubbed = []
            for record in own:
                rdata = scrub_svcb(record.rdata)
                if rdata is not None:
                    scrubbed.append(record._replace(rdata=rdata))
            own = tuple(scrubbed)
        records = links + own
        if not own and ede is not None:
            return Outcome(NOERROR, ports=ports, chain=chain, note=note, ede=ede)
        if own or (qtype == CNAME and links):
            ttl = min(record.ttl for record in records)
            return Outcome(answer.rcode, records, (), tuple(teaches), ports, chain, ttl, "", note)
        negative = answer.negative_ttl
        authority = (answer.soa,) if answer.soa is not None and negative is not None else ()
        ttl = min(negative or 0, NEGATIVE_MOST, *(record.ttl for record in links))
        return Outcome(answer.rcode, records, authority, (), ports, chain, ttl)

    def verdict(self, packed: bytes) -> Teach:
        if len(self.taught) >= TAUGHT:
            self.taught.clear()
        verdict = self.taught[packed] = self.policy.teach(packed)
        return verdict

    def remember(self, name: str, qtype: int, outcome: Outcome, template: wire.Template, now: float) -> None:
        """Keep an answer whose addresses the kernel has acknowledged."""
        self.keep(name, qtype, template, outcome.ttl, now)

    def keep(self, name: str, qtype: int, template: wire.Template | Plain, ttl: int, now: float) -> None:
        """The same for what is rendered already; `ttl` is in seconds.

        What may not be kept at all is kept for a second, with its TTL of 0 as it is: else who serves a name could have
        the sandbox's every question passed on, and their order spells something too.
        """
        self.cache.put((name, qtype), template, weight(template), now, now + (ttl or 1))


def _related(parent: str, hint: str) -> bool:
    """Is one of the names with one label more than `parent` the hint, or below it?"""
    return f".{hint}".endswith(f".{parent}") or f".{parent}".endswith(f".{hint}")


def _origin(decision: Decision) -> str:
    return decision.rule.origin if decision.rule is not None else "default"


def _stopped(name: str, link: str, stop: Decision) -> Outcome:
    return Outcome(NXDOMAIN, denied=f"{name}: leads to {link}: {stop.reason}", rule=_origin(stop))


def _unrepeated(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Each record once, with the lowest of its TTLs (RFC 2181 §5.2)."""
    lowest: dict[bytes, Record] = {}
    for record in records:
        if lowest.setdefault(record.rdata, record).ttl > record.ttl:
            lowest[record.rdata] = record
    return tuple(lowest.values()) if len(lowest) < len(records) else records


_MAPPED = bytes(10) + b"\xff\xff"


def printable(packed: bytes) -> str:
    import socket

    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
