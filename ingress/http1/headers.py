"""Which header lines cross the gateway, and which it writes itself. Pure.

Toward the sandbox: hop-by-hop fields end here, so do the gateway's own (routing, access) and everything that speaks of
the connection before us, which is written anew. No `Via`: common servers stop compressing when they see one.
Toward the client: hop-by-hop fields end here too, and what only the gateway may say.
Sources: RFC 9110 sections 7.6.1 and 7.8, RFC 9112 section 6, RFC 7239.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress

from ingress.http1.head import CHUNKED, Fields, ResponseHead
from ingress.refusal import SOURCE_HEADER

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"te",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
"""Never forwarded as they came: those of `Proxy-` are between a proxy and its next neighbour alone (RFC 9110 section
11.7). Trailer stays: trailers do cross."""

FORWARDED = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-forwarded-server",
        b"x-forwarded-ssl",
        b"x-original-url",
        b"x-original-host",
        b"x-real-ip",
        b"x-rewrite-url",
    )
)
"""What only a proxy may say; a client's own are dropped."""

_FRAMING = frozenset((b"host", b"content-length"))
WRITTEN = HOP_BY_HOP | FORWARDED | _FRAMING
"""What the gateway writes itself, or leaves out."""
_END_TO_END = frozenset((b"authorization", b"cookie", b"origin"))
"""Never hop-by-hop, whatever a Connection field says of them: without them a request means something else."""
_OWN_COOKIE = b"sallyport-"


class Outside:
    """What the gateway says of the client's side: one for each combination of address and scheme.

    address: the client's, in text. secure: it came by TLS. trusted: the peer is a proxy whose forwarded fields count;
    peer: that proxy's address. names_host: sandboxes are told which host the client asked for.
    """

    __slots__ = ("address", "names_host", "peer", "secure", "trusted")

    def __init__(
        self, address: str, secure: bool, trusted: bool = False, peer: str = "", *, names_host: bool = True
    ) -> None:
        self.address = address
        self.secure = secure
        self.trusted = trusted
        self.peer = peer or address
        self.names_host = names_host


class Recipe:
    """How a header section becomes the one for the other side; it holds for every section that `Fields.followed_by`
    links.

    fields: the first of them. dropped: the names (lower case) whose lines end here. before and after: what the gateway
    writes itself.
    """

    __slots__ = ("_after", "_before", "_kept")

    def __init__(self, fields: Fields, dropped: frozenset[bytes], before: list[bytes], after: bytes) -> None:
        self._kept = [name not in dropped for name in fields.names]
        self._before = before
        self._after = after

    def apply(self, fields: Fields) -> bytes:
        """The header lines for the other side, without the empty line and, for a sandbox, the body's framing."""
        return b"\r\n".join([*self._before, *compress(fields.lines, self._kept), self._after])


def request_recipe(
    fields: Fields,
    outside: Outside,
    stripped: frozenset[bytes],
    authority: bytes,
    prefix: bytes,
    websocket: bool,
    jar: bytes = b"",
) -> Recipe:
    """What to send for these fields.

    stripped: the names (lower case) that end here, WRITTEN among them. authority: the Host to show. prefix: what path
    mode took off the path, b"" for nothing. websocket: the upgrade goes on. jar: how the names begin under which this
    sandbox's cookies are kept for the whole host (prefix.py), b"" for none.
    """
    trusted = outside.trusted
    nominated = fields.tokens(b"connection") if b"connection" in fields else ()
    before = [b"Host: %b" % authority]
    names = fields.names
    dropped = stripped.intersection(names)
    if nominated:
        dropped = dropped.union(name for name in nominated if name not in _END_TO_END)
    joined = b" ".join(names)
    if b"_" in joined or b"." in joined:
        dropped = dropped.union(name for name in names if _is_alias(name, stripped))
    if b"cookie" in fields:
        before += _cookies(fields, jar)
        dropped = dropped | {b"cookie"}
    if b"origin" in fields and fields.get(b"host") != authority:
        before += _origin(fields, authority)
        dropped = dropped | {b"origin"}
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n" if websocket else b""
    return Recipe(fields, dropped, before, upgrade + _forwarded(fields, outside, trusted, prefix))


def _is_alias(low: bytes, stripped: frozenset[bytes]) -> bool:
    """Servers that hand headers on as variables can't tell `X_Forwarded.For` from `X-Forwarded-For` (RFC 3875)."""
    return (b"_" in low or b"." in low) and low.replace(b"_", b"-").replace(b".", b"-") in stripped


def _cookies(fields: Fields, jar: bytes) -> list[bytes]:
    """The Cookie lines without the gateway's own cookies; those of the sandbox's jar by their own names."""
    lines = []
    for value in fields.all(b"cookie"):
        if _OWN_COOKIE in value:
            pairs = [pair for part in value.split(b";") if (pair := part.strip(b" \t"))]
            kept = [pair for pair in pairs if not pair.startswith(_OWN_COOKIE)]
            if jar:
                names = {pair.partition(b"=")[0] for pair in kept}
                own = [pair[len(jar) :] for pair in pairs if pair.startswith(jar)]
                kept += [pair for pair in own if pair.partition(b"=")[0] not in names]
            value = b"; ".join(kept)
        if value:
            lines.append(b"Cookie: " + value)
    return lines


def _origin(fields: Fields, authority: bytes) -> list[bytes]:
    """The Origin lines. A page of the sandbox's own stays one: where the application is shown another Host than the
    browser, it is shown that in Origin too, or what compares the two (RFC 6455 section 10.2) would refuse it."""
    host = (fields.get(b"host") or b"").lower()
    lines = []
    for value in fields.all(b"origin"):
        scheme, mark, named = value.partition(b"://")
        own = mark and host and named.lower() == host
        lines.append(b"Origin: %b://%b" % (scheme, authority) if own else b"Origin: " + value)
    return lines


def _forwarded(fields: Fields, outside: Outside, trusted: bool, prefix: bytes) -> bytes:
    before = b", ".join(fields.all(b"x-forwarded-for")) if trusted else b""
    address = outside.peer.encode()
    scheme = (trusted and fields.get(b"x-forwarded-proto")) or (b"https" if outside.secure else b"http")
    host = (trusted and fields.get(b"x-forwarded-host")) or fields.get(b"host") or b""
    if trusted:
        prefix = (fields.get(b"x-forwarded-prefix") or b"").rstrip(b"/") + prefix
    chain = b"%b, %b" % (before, address) if before else address
    text = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n" % (chain, scheme)
    if host and outside.names_host:
        text += b"X-Forwarded-Host: %b\r\n" % host
    if prefix:
        text += b"X-Forwarded-Prefix: %b\r\n" % prefix
    return text


def is_websocket(fields: Fields) -> bool:
    """Does the request ask for a WebSocket (RFC 6455, 4.1)? Method, version and body are the caller's to check."""
    upgrade = fields.all(b"upgrade")
    return len(upgrade) == 1 and upgrade[0].lower() == b"websocket" and b"upgrade" in fields.tokens(b"connection")


Rewrite = Callable[[bytes, bytes], list[bytes]]
"""Takes a response field's lower-case name and its value; gives the values to send, each a line of its own."""

REWRITTEN = frozenset((b"location", b"content-location", b"set-cookie"))
"""What may have to be changed (prefix.py): an answer with one of these is never remembered."""


def response_head(
    head: ResponseHead, length: int, keep: bool, version: int, rewrite: Rewrite | None, extra: bytes
) -> bytes:
    """The whole head for the client, its empty line included.

    length: of the body that will be sent, in octets, CHUNKED, or UNTIL_CLOSE; keep: the connection goes on; version:
    the client's, 10 or 11; rewrite: see prefix.py; extra: further lines of the gateway's.
    """
    fields = head.fields
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    names = fields.names
    dropped = answer_dropped(head)
    if REWRITTEN.isdisjoint(names):
        lines += [line for line, name in zip(fields.lines, names, strict=True) if name not in dropped]
    else:
        for line, name in zip(fields.lines, names, strict=True):
            if name in REWRITTEN:
                start, _, value = line.partition(b":")
                value = value.strip(b" \t")
                # A cookie without a name comes back as its value alone: `=sallyport-x=1` would become one of ours.
                if name == b"set-cookie" and value.lstrip(b" \t=").startswith(_OWN_COOKIE):
                    continue
                if rewrite is not None:
                    if name not in dropped:
                        lines += [b"%b: %b" % (start, meant) for meant in rewrite(name, value)]
                    continue
            if name not in dropped:
                lines.append(line)
    if length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    if not keep:
        lines.append(b"Connection: close")
    elif version == 10:
        lines.append(b"Connection: keep-alive")
    lines.append(extra + b"\r\n")
    return b"\r\n".join(lines)


_SOURCE = SOURCE_HEADER.lower()
_LEFT_OUT = HOP_BY_HOP | {_SOURCE}
ANSWER_FIXED = _LEFT_OUT | REWRITTEN
"""Response fields that something is derived from, Content-Length apart; see `Fields.followed_by`."""


def answer_dropped(head: ResponseHead) -> frozenset[bytes]:
    """The names of an answer's fields that end here."""
    fields = head.fields
    dropped = _LEFT_OUT.intersection(fields.names)
    if b"connection" in fields:  # but a body needs its end
        dropped = dropped.union(name for name in fields.tokens(b"connection") if name != b"content-length")
    if head.status == 204 or head.status < 200:
        dropped = dropped | {b"content-length"}
    return dropped


def crossing_trailers(trailers: list[tuple[bytes, bytes]], stripped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The trailers that may cross: none that frames, routes or speaks for us (RFC 9110 section 6.5.1)."""
    kept = []
    for name, value in trailers:
        low = name.lower().replace(b"_", b"-").replace(b".", b"-")
        if not (low in HOP_BY_HOP or low in stripped or low in FORWARDED or low in _BARRED):
            kept.append((name, value))
    return kept


_BARRED = _FRAMING | {
    _SOURCE,
    b"trailer",
    b"content-encoding",
    b"content-type",
    b"content-range",
    b"authorization",
    b"cookie",
    b"set-cookie",
    b"location",
    b"expect",
    b"cache-control",
}
