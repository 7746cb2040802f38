"""For people with a browser: a signed link becomes a cookie and a clean URL, and a cookie finds a sandbox. Pure.

    GET  [/<sandbox>/<port>]/.sallyport/enter?e=<expires>&s=<signature>&to=/path     the signature of a signed route
    303  to [/<sandbox>/<port>]/path, with a cookie: host-only, HttpOnly, SameSite=Lax

The link is good once; with it its signature is used up, in signed routes too, or a link found in somebody's history
would still open the door. The cookie is `v1.<expires>.<key id>.<HMAC-SHA256 in hex>`, over sandbox, port, expiry and
the sandbox's access token: it ends with any of them. 256 bits aren't guessed; wrong ones count as other failures do.

A browser sends cookies whoever asks. SameSite keeps other sites out, not a neighbour under the same domain, so an
upgrade and an unsafe method pass by cookie only when `Origin` is this very place (RFC 6455 section 10.2).
In path mode all sandboxes are one origin to a browser, and no cookie can part them: who doesn't trust a neighbour's
pages uses host names.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from ingress.admission.access import KeyRing, from_base36
from ingress.admission.routing import Authority, Route, by_path, parse_authority, signed_part
from ingress.admission.verdict import Reply
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.head import Fields, RequestHead

ENTER = b"/.sallyport/enter"
ACCESS_COOKIE = b"sallyport-access"
ROUTE_COOKIE = b"sallyport-route"

_MOST_COOKIES = 4
"""Of one name; a page can add more to confuse us, and only these are looked at."""
_LONGEST_AGE = 400 * 86_400
"""What browsers keep a cookie for at most (RFC 6265bis section 5.5)."""
_SAFE = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_COOKIE = re.compile(r"v1\.([0-9a-z]{1,13})\.([0-9a-z])\.([0-9a-f]{64})")
_INNER = re.compile(rb"/(?!/)[!-\[\]-~]*")  # visible ASCII without the backslash, which browsers read as a slash
_DOTS = re.compile(rb"(?:\.|%2e){1,2}", re.IGNORECASE)
_ROUTE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}/[1-9][0-9]{0,4}")
_ORIGIN = re.compile(rb"(https?)://([^/?#]+)", re.IGNORECASE)
_URL = re.compile(rb"(https?)://([^/?#]+)(/[^#]*)", re.IGNORECASE)
_PORTS = {b"http": 80, b"https": 443}


class Link(NamedTuple):
    """What an enter link says; `to` is the inner path to go on to."""

    expires: str
    signature: str
    to: bytes


def is_enter(target: bytes) -> bool:
    """Is this inner target the reserved one, with or without a query."""
    return target.startswith(ENTER) and target[len(ENTER) : len(ENTER) + 1] in (b"", b"?")


def parse_link(target: bytes) -> Link:
    """An enter link's inner target. 400 for what no signer writes; a signature is looked at later."""
    values: dict[bytes, bytes] = {}
    for part in target.partition(b"?")[2].split(b"&"):
        name, _, value = part.partition(b"=")
        if name not in (b"e", b"s", b"to") or name in values:
            raise _bad_link("it takes e, s and to, each once")
        values[name] = unquote_to_bytes(value)
    to = values.get(b"to", b"/")
    if not is_inner(to):
        raise _bad_link("`to` is not an absolute path inside this sandbox, such as /docs?page=1")
    if b"e" not in values or b"s" not in values:
        raise _bad_link("e (expiry) and s (signature) are missing")
    # What has no signature's shape is a wrong one, and is answered as such.
    return Link(values[b"e"].decode("latin-1"), values[b"s"].decode("latin-1") or "-", to)


def _bad_link(what: str) -> Refusal:
    return Refusal(400, "bad_link", f"this link is not whole: {what}")


def is_inner(path: bytes) -> bool:
    """Is it an absolute path that a browser will keep where it is: no other host, no way up, nothing invisible."""
    if not _INNER.fullmatch(path):
        return False
    segments = re.split(rb"[?#]", path, maxsplit=1)[0].split(b"/")
    return not any(_DOTS.fullmatch(segment) for segment in segments)


def used_up(route: Route) -> bytes:
    """How a signature that was exchanged is remembered."""
    return f"{route.sandbox}\n{route.port}\n{route.expires}\n{route.signature}".encode()


def cookie_value(ring: KeyRing, route: Route, token: str) -> str:
    """The cookie that a verified route is exchanged for: by the same key, until the same second."""
    key_id = route.signature[8]
    expires = int(route.expires, 36)
    mac = _mac(ring.secret(key_id) or b"", route.sandbox, route.port, expires, token)
    return f"v1.{route.expires}.{key_id}.{mac}"


def _mac(secret: bytes, sandbox: str, port: int, expires: int, token: str) -> str:
    message = f"v1\nsallyport cookie\n{sandbox}\n{port}\n{expires}\n{token.strip()}"
    return hmac.new(secret, message.encode(), sha256).hexdigest()


def cookie_until(ring: KeyRing, value: str, sandbox: str, port: int, token: str, now: float) -> int | None:
    """Until when a cookie lets in, in Unix seconds; None where it doesn't now."""
    match = _COOKIE.fullmatch(value)
    expires = from_base36(match[1]) if match else None
    if match is None or expires is None:
        return None
    secret = ring.secret(match[2])
    right = hmac.compare_digest(_mac(secret or b"\0" * 32, sandbox, port, expires, token), match[3])
    return expires if right and secret is not None and int(now) <= expires else None


def cookies(fields: Fields, *names: bytes) -> list[str]:
    """The values of these cookies, a few at most, in the order sent."""
    found: list[str] = []
    for line in fields.all(b"cookie"):
        if b"sallyport-" not in line:
            continue
        for pair in line.split(b";"):
            key, _, value = pair.strip(b" \t").partition(b"=")
            if key in names and len(found) < _MOST_COOKIES:
                found.append(value.decode("latin-1"))
    return found


def access_cookies(fields: Fields, route: Route) -> list[str]:
    """What a browser offers for this sandbox and port."""
    return cookies(fields, ACCESS_COOKIE, wide_name(route)) if b"cookie" in fields else []


def wide_name(route: Route) -> bytes:
    """The access cookie for the whole host, by another name for each sandbox and port: it has to share the host."""
    return b"%b-%b" % (ACCESS_COOKIE, sha256(_place(route)).hexdigest()[:16].encode())


def _place(route: Route) -> bytes:
    return f"{route.sandbox}/{route.port}".encode()


def from_here(fields: Fields, authority: Authority) -> bool | None:
    """Does `Origin` name the place that is asked; None where there is no Origin. `null` and oddities are elsewhere."""
    sent = fields.all(b"origin")
    if not sent:
        return None
    match = _ORIGIN.fullmatch(sent[0]) if len(sent) == 1 else None
    return match is not None and _agrees(match[2], match[1], authority)


def _agrees(named: bytes, scheme: bytes, authority: Authority) -> bool:
    try:
        return bool(authority.host) and parse_authority(named).agrees(authority, _PORTS[scheme.lower()])
    except Refusal:
        return False


def may_use_cookie(head: RequestHead, authority: Authority) -> bool:
    """May a cookie speak for this request: not for an upgrade or an unsafe method started by a page from elsewhere."""
    if head.method in _SAFE and b"upgrade" not in head.fields:
        return True
    return from_here(head.fields, authority) is not False


def entered(link: Link, value: str, prefix: bytes, wide: bytes, secure: bool, now: float) -> bytes:
    """The head lines of the answer to a good link; `value` "" where the sandbox needs no cookie.

    wide: the name of a second cookie for the whole host, for an application's absolute links; b"" for none.
    """
    lines = [b"Location: %b%b\r\n" % (prefix, link.to)]
    if value:
        age = min((from_base36(link.expires) or 0) - int(now), _LONGEST_AGE)
        places = [(ACCESS_COOKIE, prefix or b"/")] + ([(wide, b"/")] if wide else [])
        lines += [
            b"Set-Cookie: %b=%b; Max-Age=%d; Path=%b; HttpOnly; SameSite=Lax%b\r\n"
            % (name, value.encode(), age, path, b"; Secure" if secure else b"")
            for name, path in places
        ]
    lines.append(b"Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\n")
    return b"".join(lines)


# -- the route cookie -----------------------------------------------------------------------------------------------


def is_document(head: RequestHead) -> bool:
    """Is it a page that a person opens (Fetch Metadata), as far as a request can tell."""
    if head.method != b"GET":
        return False
    fields = head.fields
    wanted = fields.get(b"sec-fetch-dest")
    if wanted is not None:
        return wanted == b"document"
    return b"text/html" in (fields.get(b"accept") or b"").lower()


def is_page(head: RequestHead) -> bool:
    """Is it a page of its own, or one within a page, as far as a request can tell."""
    return is_document(head) or is_opened(head)


def is_opened(head: RequestHead) -> bool:
    """Does a browser say that it is a page, of its own or within one."""
    return head.method == b"GET" and head.fields.get(b"sec-fetch-dest") in (b"document", b"iframe", b"frame")


def route_cookie(route: Route, fields: Fields, secure: bool) -> bytes:
    """The head line that makes this route the one of an application's absolute links; b"" where it is that already."""
    value = _place(route)
    if not _ROUTE.fullmatch(value) or cookies(fields, ROUTE_COOKIE) == [value.decode()]:
        return b""
    return b"Set-Cookie: %b=%b; Path=/; HttpOnly; SameSite=Lax%b\r\n" % (
        ROUTE_COOKIE,
        value,
        b"; Secure" if secure else b"",
    )


def pages_route(fields: Fields, authority: Authority) -> Route | None:
    """Which sandbox a request without a prefix belongs to: that of the page it comes from, else the cookie's.

    The page first: with two sandboxes open the cookie names the one opened last, and the other's forms would go there.
    A signed page's signature comes along; it is what that page was let in by.
    """
    referer = fields.get(b"referer")
    match = _URL.fullmatch(referer) if referer else None
    if match is not None and _agrees(match[2], match[1], authority):
        found = by_path(match[3])
        if found is not None:
            route, end = found
            signed = signed_part(match[3], end)
            return route if signed is None else route._replace(expires=signed[0], signature=signed[1])
    for value in cookies(fields, ROUTE_COOKIE):
        found = by_path(b"/" + value.encode("latin-1"))
        if found is not None and found[1] == len(value) + 1:
            return found[0]
    return None


# -- pages that are elsewhere -----------------------------------------------------------------------------------------


def moved(route: Route, signed: bool, target: bytes) -> Reply:
    """A page that was asked for without its prefix: it belongs under it, where its cookies are and its name is seen."""
    by = f"/{route.expires}/{route.signature}".encode() if signed and route.signature else b""
    there = clean(route) + by + target
    lines = b"Location: %b\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\n" % there
    return Reply(307, lines, b"The page is at %b\n" % there)


def slashed(prefix: bytes, target: bytes) -> Reply:
    """A page that was asked for by its prefix alone: without the slash its relative links would lead out of it.

    Said as a relative reference: a proxy before us may have taken off a prefix of its own.
    """
    there = prefix.rpartition(b"/")[2] + b"/" + target[len(prefix) :]
    lines = b"Location: %b\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\n" % there
    return Reply(307, lines, b"The page is at %b/\n" % prefix)


def clean(route: Route) -> bytes:
    """The unsigned prefix of a route."""
    return f"/{route.sandbox}/{route.port}".encode()
