"""Proofs of access, each looked at by the throttle's leave only: token, cookie, signature, link, a bearer token.

Every failure is one and the same 401. A proof is good until some time, in Unix seconds; a token's is good for ever.
"""

from __future__ import annotations

import hmac
from math import inf
from typing import TYPE_CHECKING

from ingress.admission import browser
from ingress.admission.access import ACCESS_HEADER, KeyRing, token_equals
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.admission.routing import Authority, Route
    from ingress.admission.throttle import Throttle
    from ingress.http1.head import Fields, RequestHead
    from ingress.routes import Sandbox


_ROUTER = "/"
"""How the throttle knows agent-sandbox's router; no sandbox is called so."""


class Door:
    """Keys and throttle together. `keys` may be set to a new ring at any time."""

    __slots__ = ("_throttle", "keys")

    def __init__(self, keys: KeyRing, throttle: Throttle) -> None:
        self.keys = keys
        self._throttle = throttle

    def missed(self, client: str, now: float) -> None:
        """Count a 404, and don't tell any more where there were too many."""
        if not self._throttle.may_miss(client, now):
            raise throttled()
        self._throttle.missed(client, now)

    def hide(self, sandbox: Sandbox, client: str, now: float) -> None:
        """To an address that has asked for too many names, a guarded sandbox looks like one that isn't there."""
        if sandbox.token.strip() and not self._throttle.may_miss(client, now):
            raise throttled(sandbox.id)

    def note(self, sandbox: Sandbox, client: str, now: float) -> None:
        """This client was let in."""
        self._throttle.succeeded(client, _name(sandbox), now)

    def prove(
        self, head: RequestHead, sandbox: Sandbox, route: Route, authority: Authority, client: str, now: float
    ) -> float:
        """Until when a request's proof is good; Refusal 401, 429 or 503 where it has none.

        The access header decides alone where it is present, right or wrong. Without it a cookie, then a signature.
        """
        proof = self._prove(head, sandbox, route, authority, client, now)
        if proof is None:
            raise self.denied(sandbox, client, now)
        self.note(sandbox, client, now)
        return proof

    def _prove(
        self, head: RequestHead, sandbox: Sandbox, route: Route, authority: Authority, client: str, now: float
    ) -> float | None:
        fields = head.fields
        sent = fields.all(ACCESS_HEADER)
        if sent:
            self._may_look(sandbox, client, now)
            if len(sent) == 1 and token_equals(sent[0], sandbox.token):
                return inf
            self._throttle.failed(client, now)
            return None
        offered = browser.access_cookies(fields, route)
        if offered and self.keys and browser.may_use_cookie(head, authority):
            self._may_look(sandbox, client, now)
            until = self._cookie(offered, sandbox, route, now)
            if until is not None:
                return until
            if not route.signature:
                self._throttle.failed(client, now)
        return self._signature(sandbox, route, client, now) if route.signature else None

    def _cookie(self, offered: list[str], sandbox: Sandbox, route: Route, now: float) -> float | None:
        for value in offered:
            until = browser.cookie_until(self.keys, value, route.sandbox, route.port, sandbox.token, now)
            if until is not None:
                return until + 1.0
        return None

    def _signature(self, sandbox: Sandbox, route: Route, client: str, now: float) -> float | None:
        """Until when a signature lets in; None where it doesn't. It is over the id as the route wrote it."""
        if not self.keys:
            self.hide(sandbox, client, now)
            raise Refusal(
                503,
                "access_not_configured",
                "this gateway has no keys to verify signed routes with: its operator sets --secure-access-keys; "
                "the token in OpenSandbox-Secure-Access works without",
                sandbox=sandbox.id,
            )
        self._may_look(sandbox, client, now)
        if not self._throttle.may_look_at_signature(client, _name(sandbox), now):
            raise throttled(sandbox.id)
        right = self.keys.verify(route.sandbox, route.port, route.expires, route.signature, now)
        if right and not self._throttle.spent(browser.used_up(route)):
            return int(route.expires, 36) + 1.0
        self._throttle.failed_signature(client, _name(sandbox), now)
        return None

    def exchange(self, head: RequestHead, sandbox: Sandbox, route: Route, client: str, now: float) -> str:
        """The cookie for a link, whose expiry and signature are the route's. 401 for a wrong or used one.

        "" where none is needed: for somebody who goes back to the link that let him in.
        """
        until = self._signature(sandbox, route, client, now)
        if until is not None:
            first = self._throttle.spend(browser.used_up(route), int(route.expires, 36), now)
            if first is None:
                raise Refusal(503, "busy", "too many links at once; try again", sandbox=sandbox.id, retry_after=1)
            if first:
                self.note(sandbox, client, now)
                return browser.cookie_value(self.keys, route, sandbox.token)
        if self._cookie(browser.access_cookies(head.fields, route), sandbox, route, now) is None:
            raise self.denied(sandbox, client, now)
        return ""

    def bearer(self, fields: Fields, token: str, client: str, now: float) -> None:
        """The token of agent-sandbox's router; 401 without it.

        Whole clusters come from the one address of a load balancer or a tunnel: where the right token came from lately,
        somebody's wrong one shuts nobody out.
        """
        sent = fields.all(b"authorization")
        words = sent[0].split() if len(sent) == 1 else []
        if len(words) == 2:
            scheme, offered = words
            if not self._throttle.may_look(client, now) and not self._throttle.knows(client, _ROUTER, now):
                raise throttled()
            if hmac.compare_digest(offered, token.encode()) and scheme.lower() == b"bearer":
                self._throttle.succeeded(client, _ROUTER, now)
                return
            self._throttle.failed(client, now)
        raise Refusal(
            401,
            "access_denied",
            "this router needs its token: send `Authorization: Bearer <token>`",
            headers=b"WWW-Authenticate: Bearer\r\n",
        )

    def denied(self, sandbox: Sandbox, client: str, now: float) -> Refusal:
        """The one answer to every missing or wrong proof."""
        self.hide(sandbox, client, now)
        return Refusal(
            401,
            "access_denied",
            "this sandbox needs access: send its token as OpenSandbox-Secure-Access, or use a signed route that is "
            "right and has not expired",
            sandbox=sandbox.id,
            headers=b"WWW-Authenticate: OpenSandbox\r\n",  # RFC 9110 section 11.6.1 wants one
        )

    def _may_look(self, sandbox: Sandbox, client: str, now: float) -> None:
        if not self._throttle.may_look(client, now):
            raise throttled(sandbox.id)


def throttled(sandbox: str = "") -> Refusal:
    """The answer to whom the throttle gives no leave."""
    return Refusal(
        429,
        "throttled",
        "too many requests that were wrong, from this address or for this sandbox; try again in a second",
        sandbox=sandbox,
        retry_after=1,
    )


def _name(sandbox: Sandbox) -> str:
    """How the throttle knows it, by whatever name the request called it."""
    return f"{sandbox.namespace}/{sandbox.id}"
