"""Which resolver is asked, and what is tried where one cannot be: in the operator's order, the well first."""

from __future__ import annotations

from egress.dns.channels import Entropy, Pool
from egress.dns.question import HEAD, OPT
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from egress.dns.channels import Channel
    from egress.dns.question import Question
    from egress.loop import Gather, Loop

DOWN_AFTER = 3  # time-outs in a row


class Health:
    """How one server does."""

    __slots__ = ("failures", "srtt")

    def __init__(self) -> None:
        self.srtt = 0.1  # seconds, smoothed
        self.failures = 0  # in a row

    @property
    def down(self) -> bool:
        return self.failures >= DOWN_AFTER


class Resolvers:
    """All of them by their number, with their health and their sockets."""

    def __init__(
        self,
        loop: Loop,
        count: int,
        dial: Callable[[int], socket.socket],
        ready: Gather,
        refused: Callable[[Channel], None],
    ) -> None:
        """Channels that can be read are put into `ready`; `refused` hears of those that an ICMP error came for."""
        self.health = [Health() for _ in range(count)]
        self.all = (1 << count) - 1  # bit mask of them
        self.entropy = Entropy()
        self.pools = [Pool(loop, index, _dialler(dial, index), ready, self.entropy) for index in range(count)]
        self._refused = refused

    def send(self, question: Question, now: float) -> None:
        """Ask whoever is next."""
        server = self._choose(question)
        if not self.send_to(question, server, now):
            self.send_elsewhere(question, server, now)

    def _choose(self, question: Question) -> int:
        """In the operator's order: untried servers before tried ones, before those that failed; the well ones first."""
        tried, failed, health = question.tried, question.failed, self.health
        return min(
            range(len(health)), key=lambda index: (tried >> index & 1, failed >> index & 1, health[index].down, index)
        )

    def send_elsewhere(self, question: Question, server: int, now: float) -> None:
        """`server` could not be asked: the next one that was not tried."""
        while True:
            question.failed |= 1 << server
            self.health[server].failures += 1
            if question.tried == self.all:
                return  # the clock tries again until the time is up
            server = self._choose(question)
            if self.send_to(question, server, now):
                return

    def send_to(self, question: Question, server: int, now: float) -> bool:
        """Ask this one; False where it cannot be asked."""
        question.tried |= 1 << server
        pool = self.pools[server]
        try:
            channel, ident = pool.take(now)
            try:
                channel.send(ident + HEAD + question.body + OPT)
            except OSError as error:
                if not self.lost(channel, error):
                    channel, ident = pool.take(now)
                    channel.send(ident + HEAD + question.body + OPT)
        except OSError:
            return False
        channel.ids[ident] = question
        question.simple = not question.places  # out in one place only
        question.places = [*question.places, (channel, ident)]
        return True

    def lost(self, channel: Channel, error: OSError) -> bool:
        """What could not be sent is lost as any packet may be; but for what another socket may help against."""
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return True
        if isinstance(error, ConnectionError):  # ICMP, for an earlier question
            self._refused(channel)
        else:  # the address or the route is gone
            self.pools[channel.server].retire_all()
        return False


def _dialler(dial: Callable[[int], socket.socket], index: int) -> Callable[[], socket.socket]:
    return lambda: dial(index)
