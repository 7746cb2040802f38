"""What the names themselves may carry out. Pure: time is an argument.

Under a wildcard the sandbox chooses the labels, and whoever serves the zone reads them: data leaves in names that are
asked for, with no address ever opened. What gives that away is not how many names there are, since a browser asks for
hundreds of short ones in a second, but how many octets of them were never seen before. So a name costs the octets in
front of the longest end of it that is known already: all of it the first time, its first label where only that is new,
nothing when it is asked again. Ends and not labels, because labels that are known each by itself still spell something
in a new order.

    name ─▶ known? ─▶ costs nothing ─────────────────────┐
              └─▶ octets left, of this rule and of all? ─┴─▶ questions left? ─▶ may be asked of the resolvers

Known names say something by their order, so questions are counted too, known or not: in a rate that a person's
programs do not reach. Both counts fill up again with time, evenly.

An account is kept for what a rule names: `*.example.com`, whichever rule and generation of the policy says so. Where
the rule names no zone that one party would hold (`*`, `*.com`, the default) each pair of last labels has one, and these
do not go into the sum: where any name is allowed a tunnel needs no names. Rules for exact names have none: there is
nothing to choose but the case of the letters, and that is not passed on.

A search domain is not what was meant (Kubernetes' `ndots:5`): `api.example.com.svc.cluster.local` counts as
`api.example.com` where that is allowed, so that the look-up behind it is paid for, once.
"""

from __future__ import annotations

from policies.model import Action
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policies.matcher import CompiledPolicy
    from policies.model import Decision

DAY = 86_400.0  # seconds in which an empty budget of octets is full again
OCTETS = 48 * 1024  # for one rule
SHARES = 4  # what all rules have together, in budgets of one
RATE = 64  # questions a second, for one rule
BURST = 128  # seconds of that rate which may be asked at once: three questions each for 2,700 names
KNOWN = 8192  # ends of names in each of the two halves of what is remembered
ACCOUNTS = 1024  # in each of two tables; the oldest makes room
_LATELY = 1.0  # seconds
_DRAWN = 64  # questions that an account draws at a time, so that the clock is looked at seldom


class Limits(NamedTuple):
    """What may be spent."""

    octets: int = OCTETS  # of never-seen names in a day, for one rule; 0: nothing is counted at all
    total: int = OCTETS * SHARES  # the same for all rules together; 0: no such limit
    rate: int = RATE  # questions a second, for one rule; 0: no such limit


class Bucket:
    """Holds `size`, is full at first, and fills up again evenly with `rate` a second."""

    __slots__ = ("at", "held", "rate", "size")

    def __init__(self, size: float, rate: float) -> None:
        self.size = size
        self.rate = rate
        self.held = size  # at `at`
        self.at = float("-inf")  # CLOCK_MONOTONIC seconds

    def fill(self, now: float) -> None:
        """Add what has come back until `now`."""
        held = self.held + (now - self.at) * self.rate
        self.held = held if held < self.size else self.size
        self.at = now


def _boundless() -> Bucket:
    return Bucket(float("inf"), 0.0)


class Account:
    """What is left for the names below one zone."""

    __slots__ = ("_all", "_budget", "_filled", "_known", "_octets", "_questions", "_ready", "reason", "zone")

    def __init__(self, budget: Budget, zone: str, total: Bucket) -> None:
        limits = budget.limits
        self._budget = budget
        self._known = budget.known
        self._octets = Bucket(limits.octets, limits.octets / DAY)
        self._questions = Bucket(limits.rate * BURST, limits.rate) if limits.rate else None
        self._all = total
        self._filled = float("-inf")  # when both were last brought up to date
        self._ready = 0
        self.zone = zone  # "example.com" for the names below it
        self.reason = ""  # of the last refusal: which budget is used up, safe to print

    def admits(self, name: str, now: float, cost: int = 0) -> bool:
        """May this be asked of the resolvers now? It is paid for by asking; `reason` says why not.

        `name` is canonical. Refused names cost nothing and are not remembered. `cost`, where it is known that the name
        has but one label in front of the zone: its octets and a dot.
        """
        ready = self._ready
        if not ready:
            return self._weigh(name, now)
        known = self._known
        mark = hash(name)
        if mark in known:
            self._ready = ready - 1
            return True
        # One new label in front of the zone, and enough in both counts, which were brought up to date a moment ago:
        # most new names. The same as `_weigh`, without its calls.
        octets, total = self._octets, self._all
        if (
            cost
            and now - self._filled <= _LATELY
            and octets.held >= cost
            and total.held >= cost
            and mark not in self._budget.before
            and len(known) < KNOWN
        ):
            self._ready = ready - 1
            octets.held -= cost
            total.held -= cost
            known.add(mark)
            return True
        return self._weigh(name, now)

    def _weigh(self, name: str, now: float) -> bool:
        cost = self._unknown(name)
        octets, total = self._octets, self._all
        if cost:
            if now > octets.at:
                octets.fill(now)
            if octets.held < cost:
                return self._refuse(f"{self._budget.limits.octets} bytes of new names a day below {self.zone}")
            if now > total.at:
                total.fill(now)
            self._filled = now
            if total.held < cost:
                return self._refuse(f"{self._budget.limits.total} bytes of new names a day for all rules together")
        if not self._ready and not self._draw(now):
            return self._refuse(f"{self._budget.limits.rate} questions a second below {self.zone}")
        self._ready -= 1
        if cost:
            octets.held -= cost
            total.held -= cost
        self._budget.remember(name, len(name) - len(self.zone))
        return True

    def _unknown(self, name: str) -> int:
        """The octets in front of the longest end that is known; the zone itself always is.

        From the zone on outwards, so that a name of a hundred new levels is looked at once and not a hundred times.
        """
        known, before = self._known, self._budget.before
        start = max(0, len(name) - len(self.zone))
        while start:
            longer = name.rfind(".", 0, start - 1) + 1
            end = hash(name[longer:])
            if end not in known and end not in before:
                break
            start = longer
        return start

    def _draw(self, now: float) -> bool:
        questions = self._questions
        if questions is None:
            self._ready = _DRAWN
            return True
        if now > questions.at:
            questions.fill(now)
        ready = self._ready = int(min(questions.held, _DRAWN))
        questions.held -= ready
        return ready > 0

    def _refuse(self, what: str) -> bool:
        self.reason = f"over its budget: {what}"
        return False


class Budget:
    """The accounts of one sandbox; they outlive policies."""

    def __init__(self, limits: Limits, search: tuple[str, ...] = ()) -> None:
        """`search` are the search domains of the namespace's resolv.conf, canonical."""
        self.limits = limits
        self.known: set[int] = set()  # hashes of ends of names: 64 keyed bits are as good as the names, and smaller
        self.before: set[int] = set()
        self._search = tuple(sorted(("." + domain for domain in search if domain), key=len, reverse=True))
        self._total = Bucket(limits.total, limits.total / DAY) if limits.total else _boundless()
        self._alone = _boundless()  # for accounts that do not go into the sum
        self._ruled: dict[str, Account] = {}
        self._open: dict[str, Account] = {}

    def remember(self, name: str, zone: int) -> None:
        """All ends of a name that was paid for; its zone begins at `zone`.

        What nobody has asked for in a long time is forgotten, and costs again.
        """
        known = self.known
        if len(known) >= KNOWN:
            self.before = set(known)
            known.clear()  # in place: the accounts hold it
        start = 0
        while start < zone:
            known.add(hash(name[start:]))
            start = name.find(".", start) + 1
        if not zone:
            known.add(hash(name))

    def admits(self, policy: CompiledPolicy, name: str, decision: Decision, now: float) -> Account | None:
        """None where the name, which the policy allows by `decision`, may be asked of the resolvers.

        Else the account that has not enough left.
        """
        front = self._meant(name)
        if front:
            meant = policy.decide_name(front)
            if meant.action is Action.ALLOW:
                name, decision = front, meant
        if name in policy.exact_names:
            return None
        account = self.account(name, decision)
        return None if account is None or account.admits(name, now) else account

    def account(self, name: str, decision: Decision) -> Account | None:
        """Where an allowed name that no rule names counts; None where it does not."""
        rule = decision.rule
        if not self.limits.octets or not name:
            return None
        zone = rule.target[2:] if rule is not None and rule.kind == "suffix" else ""
        accounts, total = self._ruled, self._total
        if "." not in zone:
            zone = name[name.rfind(".", 0, max(name.rfind("."), 0)) + 1 :]
            accounts, total = (
                self._open,
                self._alone,
            )  # tables of their own: names that anybody makes up push out no rule's
        account = accounts.get(zone)
        if account is None:
            if len(accounts) >= ACCOUNTS:
                del accounts[next(iter(accounts))]
            account = accounts[zone] = Account(self, zone, total)
        return account

    def below(self, parent: str, decision: Decision) -> tuple[bool, Account | None]:
        """For names of one label more than `parent`, all of them allowed by `decision`: whether they count alike, and
        then where."""
        if not self.limits.octets:
            return True, None
        if self._meant("?." + parent):
            return False, None
        rule = decision.rule
        if "." not in parent and not (rule is not None and rule.kind == "suffix" and "." in rule.target[2:]):
            return False, None  # each of them is a zone of its own
        return True, self.account("?." + parent, decision)

    def is_expansion(self, name: str) -> bool:
        """Is this a name of several labels with a search domain behind it?"""
        return bool(self._meant(name))

    def _meant(self, name: str) -> str:
        """The name in front of a search domain, "" where there is none of several labels."""
        for domain in self._search:
            if name.endswith(domain):
                front = name[: -len(domain)]
                return front if "." in front else ""
        return ""
