"""What happens in a worker, told to everybody who listens: the log, the operator's webhook, the metrics."""

from __future__ import annotations

from egress.dns.interceptor import printable
from egress.events import Events, identity
from egress.metrics import Counters, Machine, prometheus, snapshot
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from egress.config import Config
    from egress.dns.interceptor import Denial
    from egress.exporter import Exporter
    from egress.firewall.nflog import Denied
    from egress.log import Log
    from egress.loop import Loop
    from egress.metrics import Metric
    from egress.sni.desk import Refusal
    from egress.webhook import Webhook

    Dial = Callable[[str, int], socket.socket]


class Telemetry:
    """One worker's. Belongs to the loop's thread."""

    def __init__(self, config: Config, log: Log, loop: Loop, guarded: Callable[[], tuple[int, int]]) -> None:
        """`guarded` gives the rules in force in the kernel, and how often it was written to."""
        self.events = Events(log, loop)
        self.counters = Counters()
        self._config = config
        self._log = log
        self._loop = loop
        self._guarded = guarded
        self._machine = Machine(_text)
        self._shown: tuple[float, bytes] = (float("-inf"), b"")
        self._webhook: Webhook | None = None
        self._exporter: Exporter | None = None

    # -- who listens ---------------------------------------------------------------------------------------------
    def call(self, dial: Dial) -> None:
        """Tell the webhook, where one is configured; `dial` opens the sidecar's own connections."""
        if self._config.deny_webhook is not None:
            from egress.webhook import Webhook

            self._webhook = Webhook(
                self._config.deny_webhook, self._config.sandbox_id, dial, self._loop, self._log.warn
            )

    def export(self, dial: Dial) -> None:
        """Begin to send the metrics, where that is configured."""
        config = self._config
        if config.otlp is not None:
            from egress.exporter import Exporter

            attributes = [(key, str(value)) for key, value in identity(config).items()]
            self._exporter = Exporter(
                config.otlp, config.otlp_interval, attributes, self._measure, dial, self._loop, self._log.warn
            )
            self._exporter.start()

    def prometheus(self) -> bytes:
        """What /metrics shows; made once a second at most, since anybody may ask."""
        now = self._loop.now()
        if now - self._shown[0] >= 1.0:
            self._shown = (now, prometheus(self._measure()))
        return self._shown[1]

    def _measure(self) -> tuple[Metric, ...]:
        undelivered = 0 if self._exporter is None else self._exporter.failed
        if self._webhook is not None:
            self.counters.untold = self._webhook.dropped
        return snapshot(self.counters, self._machine, *self._guarded(), undelivered)

    # -- what happens --------------------------------------------------------------------------------------------
    def denied_name(self, denial: Denial) -> None:
        """A question was refused."""
        if denial.expansion:
            self.counters.expansions += 1
            self._log.debug("search-list expansion denied", **{"target.host": denial.name})
            return
        self.counters.denied += 1
        if denial.budget:
            self.counters.over_budget += 1
            if not self.events.over_budget(denial.name, denial.budget, denial.reason, denial.rule):
                return  # a tunnel has thousands: the webhook, too, hears of it once in a while
        else:
            self.events.denied_name(denial.name, denial.reason, denial.rule)
        if self._webhook is not None:
            self._webhook.denied(denial.name)

    def denied_connection(self, refusal: Refusal) -> None:
        """The name guard refused one."""
        self.counters.connections += refusal.times
        address = printable(refusal.packed) if refusal.packed else "the name guard"
        self.events.denied_connection(address, refusal.port, refusal.name, refusal.reason, refusal.rule)
        if self._webhook is not None:
            self._webhook.denied(refusal.name or address)

    def denied_packet(self, denied: Denied, names: Sequence[str]) -> None:
        """The kernel refused one; `names` led to where it was going."""
        host = names[0] if names else ""
        self.events.denied_packet(printable(denied.destination), denied.protocol, denied.port, host)

    def opened(self, name: str, addresses: Sequence[bytes]) -> None:
        """A name was answered with these, which are open now."""
        if self.events.wants_allowed(name):
            self.events.allowed_name(name, [printable(packed) for packed in addresses])

    def unresolved(self, name: str, note: str) -> None:
        """An allowed name got no answer."""
        self.events.allowed_name(name, (), note)


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
