"""Who is let in where: the brain of one request. Synchronous, memory only, no I/O; the time is an argument.

    head -> route (400) -> sandbox (404) -> ready (503) -> port (404) -> access (401, 429, 503) -> Admission

What a connection was once told it is told again without a second look: the answer is kept with its header section
(`Fields.memo`) for the routes, keys and client it was found with, a minute at most. A look at a token or a signature
costs the throttle's leave; what was found right before needs none.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ingress.admission import browser
from ingress.admission.access import ACCESS_HEADER, KeyRing
from ingress.admission.agentwire import AGENT_HEADERS, in_the_routers_words, place, read_agent_route
from ingress.admission.door import Door
from ingress.admission.routing import (
    RENEW_HEADER,
    ROUTING_HEADERS,
    Authority,
    Route,
    authority_and_target,
    by_header,
    by_host,
    by_path,
    inner_target,
    no_route,
    signed_part,
)
from ingress.admission.verdict import Admission, Reply
from ingress.http1.prefix import jar
from ingress.refusal import Refusal
from ingress.routes import Ambiguous, Sandbox

if TYPE_CHECKING:
    from ingress.admission.throttle import Throttle
    from ingress.http1.head import Fields, RequestHead
    from ingress.routes import Routes

AGENT = "agent-sandbox"
STRIPPED = frozenset((*ROUTING_HEADERS, RENEW_HEADER, ACCESS_HEADER))
"""Request headers, in lower case, that never reach a sandbox."""
AGENT_STRIPPED = STRIPPED | AGENT_HEADERS | {b"authorization"}
"""The same where agent-sandbox's wire is spoken: there Authorization is for the gateway."""

_LOOKS_AT = frozenset((b"host", b"cookie", b"origin", b"upgrade", b"purpose", b"sec-purpose", b"x-sandbox-id"))
_DOCUMENTS = frozenset((b"accept", b"referer", b"sec-fetch-dest"))

REMEMBERED = 60.0
"""Seconds for which an answer is kept; then the proof is noted anew as recent."""
_STATUS = (b"/status.ok", b"/healthz")


class GateSettings(NamedTuple):
    """What the operator chose."""

    mode: frozenset[str] = frozenset(("header", "host"))
    """Of header, host and uri, as many as wanted; or agent-sandbox alone."""
    status_ok: bool = True
    """Answer /status.ok here where no route claims it."""
    route_cookie: bool = False
    """In uri mode: a cookie that finds the sandbox for an application's absolute links."""
    router_token: str = ""
    """agent-sandbox: the bearer token that callers need; "": none, on purpose."""
    router_timeout: float = 180.0
    """agent-sandbox: the most seconds a caller may ask for."""
    cluster_domain: str = ""
    """agent-sandbox: the domain of the services' names; "": as the sandboxes say."""


class _Seen:
    """What a header section led to."""

    __slots__ = (
        "admission", "client", "document", "entry", "generation", "keys", "port", "prefix", "proof", "proven",
        "signable", "target", "until",
    )  # fmt: skip

    admission: Admission
    target: bytes
    client: str
    document: bool  # may set the route cookie
    entry: Sandbox
    generation: int
    keys: KeyRing
    port: int
    prefix: bytes
    proof: float  # until when the proof of access is good
    proven: tuple[str, str]  # expiry and signature of the route, ("", "") without
    signable: bool  # what follows the prefix could be a signature
    until: float


class Gate:
    """Decides every request of a worker."""

    def __init__(self, settings: GateSettings, routes: Routes, keys: KeyRing, throttle: Throttle) -> None:
        self.settings = settings
        self.stripped = AGENT_STRIPPED if AGENT in settings.mode else STRIPPED
        self.looks_at = self.stripped | _LOOKS_AT | (_DOCUMENTS if settings.route_cookie else frozenset())
        """Every request field, in lower case, that an answer of `admit` may depend on."""
        self._routes = routes
        self._keys = keys
        self._door = Door(keys, throttle)

    @property
    def keys(self) -> KeyRing:
        """The keys that signed routes are verified with; set a new ring to rotate them."""
        return self._keys

    @keys.setter
    def keys(self, ring: KeyRing) -> None:
        self._keys = self._door.keys = ring

    def admit(self, head: RequestHead, client: str, secure: bool, now: float) -> Admission | Reply:
        """Let a request in, answer it, or raise Refusal.

        client: its address in text; secure: it came by TLS, to us or to a proxy that is trusted; now: Unix seconds.
        """
        seen: _Seen | None = head.fields.memo.get("gate")
        if (
            seen is not None
            and seen.generation == self._routes.generation
            and now < seen.until
            and seen.client == client
            and seen.keys is self._keys
        ):
            target = head.target
            if target == seen.target and not (seen.document and head.method == b"GET"):
                return seen.admission
            again = self._again(seen, target, head)
            if again is not None:
                seen.target = target
                seen.admission = again
                return again
        return self._decide(head, client, secure, now)

    def _again(self, seen: _Seen, target: bytes, head: RequestHead) -> Admission | None:
        """Another target with a header section that is known; None where it has to be looked at as a whole."""
        prefix = seen.prefix
        if prefix:
            if not target.startswith(prefix):
                return None
            inner = target[len(prefix) :]
            if not inner.startswith(b"/"):
                return None
            if seen.signable and signed_part(target, len(prefix)) is not None:
                return None
        else:
            if not target.startswith(b"/"):
                return None
            inner = target
        if inner.startswith(browser.ENTER) or (seen.document and head.method == b"GET"):
            return None
        return seen.admission.with_target(inner)

    def _decide(self, head: RequestHead, client: str, secure: bool, now: float) -> Admission | Reply:
        authority, target = authority_and_target(head)
        mode = self.settings.mode
        if AGENT in mode:
            return self._agent(head, authority, target, client, now)
        fields = head.fields
        route = by_header(fields) if "header" in mode else None
        if route is None and "host" in mode:
            route = by_host(authority)
        prefix, cut = b"", True
        if route is None and "uri" in mode:
            route, prefix, cut = self._by_path(fields, authority, target)
        if route is None:
            if self.settings.status_ok and head.method in (b"GET", b"HEAD") and _path(target) == _STATUS[0]:
                return Reply(200, b"Content-Type: text/plain\r\n", b"OK")
            raise no_route(mode)
        sandbox = self._find(route, client, now)
        needs = bool(sandbox.token.strip())
        if needs and prefix and cut:
            part = signed_part(target, len(prefix))
            if part is not None:
                route = route._replace(expires=part[0], signature=part[1])
                prefix = target[: part[2]]
        inner = inner_target(target, len(prefix)) if prefix and cut else target
        if browser.is_enter(inner):
            return self._enter(head, sandbox, route, inner, bool(prefix), client, secure, now)
        proof = self._access(head, sandbox, route, authority, client, now) if needs else inf
        if not cut and browser.is_page(head):
            return browser.moved(route, needs, target)
        bare = bool(prefix) and cut and not target.startswith(b"/", len(prefix))
        if bare and browser.is_opened(head):
            return browser.slashed(prefix, target)
        if self.settings.route_cookie and prefix and cut and browser.is_document(head):
            set_cookie = browser.route_cookie(route, fields, secure)
        else:
            set_cookie = b""
        admission = Admission(
            sandbox,
            route.port,
            inner,
            prefix,
            set_cookie,
            _renews(fields),
            _shown(sandbox, head, authority),
            asked=route.sandbox,
            jar=jar(prefix) if prefix and self.settings.route_cookie else b"",
        )
        if cut and not bare and target is head.target and target.startswith(b"/"):
            self._remember(fields, admission, target, route, client, now, proof, authority)
        return admission

    def _by_path(self, fields: Fields, authority: Authority, target: bytes) -> tuple[Route | None, bytes, bool]:
        """Route, prefix and whether the prefix is in the target, by path or by the page that a request comes from."""
        found = by_path(target)
        if found is not None and (not self.settings.route_cookie or self._routes.find(found[0].sandbox) is not None):
            return found[0], target[: found[1]], True
        if self.settings.route_cookie and target.startswith(b"/"):
            route = browser.pages_route(fields, authority)
            if route is not None and self._routes.find(route.sandbox) is not None:
                return route, browser.clean(route), False
        return (found[0], target[: found[1]], True) if found is not None else (None, b"", True)

    def _find(self, route: Route, client: str, now: float) -> Sandbox:
        entry = self._routes.find(route.sandbox)
        if entry is None:
            self._door.missed(client, now)
            raise _unknown("there is no sandbox of this name; it may have ended, and case counts", route.sandbox)
        if isinstance(entry, Ambiguous):
            raise _ambiguous(entry, route.sandbox)
        return self._usable(entry, route.port, client, now)

    def _usable(self, entry: Sandbox, port: int, client: str, now: float) -> Sandbox:
        if not entry.ready:
            self._door.hide(entry, client, now)
            why = f": {entry.reason}" if entry.reason else ""
            raise Refusal(503, "not_ready", f"the sandbox is not ready{why}", sandbox=entry.id, retry_after=1)
        if entry.ports is not None and port not in entry.ports:
            self._door.missed(client, now)
            listed = ", ".join(map(str, sorted(entry.ports)[:20])) or "none"
            raise Refusal(
                404,
                "unknown_port",
                f"port {port} of this sandbox is not to be reached from outside; these are: {listed}",
                sandbox=entry.id,
            )
        return entry

    def _access(
        self, head: RequestHead, sandbox: Sandbox, route: Route, authority: Authority, client: str, now: float
    ) -> float:
        """Until when this request's proof of access is good. What was looked at before is not looked at again."""
        seen: _Seen | None = head.fields.memo.get("gate")
        if (
            seen is not None
            and seen.client == client
            and seen.keys is self._keys
            and seen.port == route.port
            and seen.proven == (route.expires, route.signature)
            and now < seen.proof
            and seen.entry == sandbox
        ):
            self._door.note(sandbox, client, now)
            return seen.proof
        return self._door.prove(head, sandbox, route, authority, client, now)

    def _enter(
        self,
        head: RequestHead,
        sandbox: Sandbox,
        route: Route,
        inner: bytes,
        prefixed: bool,
        client: str,
        secure: bool,
        now: float,
    ) -> Reply:
        """Exchange a signed link for a cookie, and go on to the clean URL."""
        if head.method != b"GET":
            raise Refusal(
                405, "method_not_allowed", "this link is for GET", sandbox=sandbox.id, headers=b"Allow: GET\r\n"
            )
        purpose = head.fields.get(b"sec-purpose") or head.fields.get(b"purpose") or b""
        if b"prefetch" in purpose:
            raise Refusal(503, "prefetch", "this link is good once, and not to be fetched ahead", sandbox=sandbox.id)
        link = browser.parse_link(inner)
        prefix = browser.clean(route) if prefixed else b""
        cookie = ""
        if sandbox.token.strip():
            route = route._replace(expires=link.expires, signature=link.signature)
            cookie = self._door.exchange(head, sandbox, route, client, now)
        wide = browser.wide_name(route) if prefixed and self.settings.route_cookie else b""
        lines = browser.entered(link, cookie, prefix, wide, secure, now)
        return Reply(303, lines, b"You are in; the page is at %b%b\n" % (prefix, link.to))

    def _remember(
        self,
        fields: Fields,
        admission: Admission,
        target: bytes,
        route: Route,
        client: str,
        now: float,
        proof: float,
        authority: Authority,
    ) -> None:
        """Keep this answer with the header section, where every method may have it."""
        needs = proof != inf or bool(admission.sandbox.token.strip())
        if needs and ACCESS_HEADER not in fields and browser.from_here(fields, authority) is False:
            return  # a cookie may have spoken, and for another method it must not
        seen = _Seen()
        seen.admission = admission
        seen.target = b"" if admission.set_cookie else target
        seen.client = client
        seen.document = self.settings.route_cookie and bool(admission.prefix)
        seen.entry = admission.sandbox
        seen.generation = self._routes.generation
        seen.keys = self._keys
        seen.port = admission.port
        seen.prefix = admission.prefix
        seen.proof = proof
        seen.proven = (route.expires, route.signature)
        seen.signable = needs and not route.signature
        seen.until = min(proof, now + REMEMBERED)
        fields.memo["gate"] = seen

    # -- the wire of Kubernetes agent-sandbox's router ----------------------------------------------------------------

    def _agent(
        self, head: RequestHead, authority: Authority, target: bytes, client: str, now: float
    ) -> Admission | Reply:
        fields = head.fields
        if head.method in (b"GET", b"HEAD") and _path(target) in _STATUS and b"x-sandbox-id" not in fields:
            if _path(target) == _STATUS[1]:
                return Reply(200, b"Content-Type: application/json\r\n", b'{"status":"ok"}')
            if self.settings.status_ok:
                return Reply(200, b"Content-Type: text/plain\r\n", b"OK")
        if self.settings.router_token:
            self._door.bearer(fields, self.settings.router_token, client, now)
        asked = read_agent_route(fields, self.settings.router_timeout)
        try:
            entry = self._routes.find_in(asked.namespace, asked.sandbox)
            if entry is None:
                self._door.missed(client, now)
                raise _unknown(f"there is no sandbox {asked.sandbox} in namespace {asked.namespace}", asked.sandbox)
            entry = self._usable(entry, asked.port, client, now)
        except Refusal as refusal:
            raise in_the_routers_words(refusal) from None
        sandbox, shown = place(entry, asked, self.settings.cluster_domain)
        route = Route(asked.sandbox, asked.port)
        proof = self._access(head, sandbox, route, authority, client, now) if sandbox.token.strip() else inf
        admission = Admission(
            sandbox, asked.port, target, b"", b"", _renews(fields), shown, asked.timeout, asked.sandbox
        )
        if target is head.target and target.startswith(b"/"):
            self._remember(fields, admission, target, route, client, now, proof, authority)
        return admission


def _path(target: bytes) -> bytes:
    return target.partition(b"?")[0]


def _renews(fields: Fields) -> bool:
    return RENEW_HEADER not in fields or b"skip" not in [value.lower() for value in fields.all(RENEW_HEADER)]


def _shown(sandbox: Sandbox, head: RequestHead, authority: Authority) -> bytes:
    """The Host to show: the sandbox's own setting; the URL's authority where the request had no Host."""
    if sandbox.upstream_host:
        return sandbox.upstream_host.encode()
    if head.fields.get(b"host") is None and authority.host:
        return authority.host if authority.port is None else b"%b:%d" % (authority.host, authority.port)
    return b""


def _unknown(message: str, asked: str) -> Refusal:
    return Refusal(404, "unknown_sandbox", message, sandbox=asked)


def _ambiguous(entry: Ambiguous, asked: str) -> Refusal:
    where = ", ".join(entry.where[:10])
    return Refusal(
        502, "ambiguous_sandbox", f"more than one sandbox has this name: {where}; rename all but one", sandbox=asked
    )
