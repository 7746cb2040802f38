"""What befalls a client's connection from outside: time passes, its sandbox comes up or goes, the gateway goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingress.http1.connection import ANSWER, BODY, IDLE, LINGER, WAITING
from ingress.http1.exchange import Exchange
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.routes import Sandbox
    from ingress.settings.limits import Limits

EOF_GRACE = 5
"""Seconds that a client which has closed its sending side is still answered when nothing moves."""


class Client(Exchange):
    """An exchange among the gateway's others."""

    __slots__ = ()

    # a sandbox that isn't ready

    def retry(self) -> None:
        """The table has changed for a sandbox that this request waits for."""
        if self.state != WAITING:
            return
        self._proceed()
        try:
            self._admit()
        except Refusal as refusal:
            if refusal.code == "not_ready":
                self.state = WAITING
                self.core.wait(self, refusal)
            else:
                self._fail(refusal)
            return
        if self.state == IDLE:
            self._next()
        elif self.state == BODY:
            data, self._buffer = self._buffer, b""
            self.resume_reading()
            if data:
                self.take_body(data)
            self._give_up_half_a_body()

    def waits(self) -> bool:
        """Is the request still held for a sandbox that isn't ready?"""
        return self.state == WAITING

    def give_up(self, refusal: Refusal) -> None:
        """The wait is over, and the sandbox still isn't ready."""
        if self.state == WAITING:
            self._proceed()
            self._fail(refusal)

    def _proceed(self) -> None:
        self.quiet = 0  # it was our own wait
        self.state = BODY if self._left or self._chunks is not None else ANSWER

    def sandbox_gone(self, sandbox: Sandbox) -> None:
        """A sandbox was deleted: a request under way to it ends."""
        if self._endpoint is not None and self._endpoint.leads_to(sandbox):
            self._fail(Refusal(502, "sandbox_gone", "the sandbox was deleted"))

    def drain(self) -> None:
        """The gateway is going: the next answer says that the connection ends with it."""
        self.plain = False

    def close_idle(self) -> None:
        """The connection ends without another request, where none has begun."""
        if self.state == IDLE and not self._started:
            self.close()

    # time

    def tick(self) -> None:
        """A second has passed."""
        if self.moved:
            self.moved = False
            self.quiet = 0
            if self.state == BODY or (self.state == ANSWER and self.status):
                self._renew()
            if self.sent:
                self.core.stats.bytes_out += self.sent
                self._sent_before += self.sent
                self.sent = 0
            if self.state not in (IDLE, LINGER) or not self._started:
                return
        self.quiet += 1
        if self.state in (IDLE, LINGER):
            self.tick_idle()
        else:
            self._overdue(self.core.limits)

    def _renew(self) -> None:
        core, admission = self.core, self.admission
        if core.renewer is not None and admission.renew:
            core.renewer.note(admission.asked, admission.port, admission.request_uri)

    def _overdue(self, limits: Limits) -> None:
        quiet, state = self.quiet, self.state
        if state == BODY:
            if quiet > limits.body_timeout:
                self._fail(Refusal(408, "body_timeout", "the request's body stopped coming", close=True))
        elif state == ANSWER:
            if self._eof and quiet > EOF_GRACE:
                self._drop_upstream()
                self.count("client_gone", 499)
                self.close()
            elif self.write_paused:
                if quiet > limits.body_timeout:
                    self._fail(Refusal(408, "reader_timeout", "the client stopped reading"))
            elif self.status:
                if limits.stream_timeout and quiet > limits.stream_timeout:
                    self._fail(Refusal(504, "stream_timeout", "the sandbox stopped sending"))
            else:
                allowed = self.admission.timeout or limits.response_timeout
                if allowed and quiet >= max(allowed, 1.0) and self._upstream is not None:
                    self.core.stats.upstream_error("timeout")
                    self._fail(Refusal(504, "response_timeout", f"the sandbox did not answer within {allowed:g} s"))
