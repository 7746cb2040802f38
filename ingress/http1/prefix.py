"""What applications say of themselves is put right on the way back, in path mode above all. Pure.

An application behind `/box/8080` that redirects to `/login` means `/box/8080/login`, and a cookie for `/` is meant for
its own pages only: on a shared host the next sandbox must not see it (RFC 6265 section 5.1.4).

With a route cookie its absolute links (`/api`) lead to it too, without the prefix, and there a browser doesn't send
what was set for the prefix. So each cookie is then set twice, the second time for the whole host and by a name of this
sandbox's, which no other gets to see; it comes back in headers.py:

    Set-Cookie: sid=1; Path=/    ->    Set-Cookie: sid=1; Path=/box/8080/
                                       Set-Cookie: sallyport-jar-86da75ba3d3e571f-sid=1; HttpOnly; Path=/
"""

from __future__ import annotations

import re
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from ingress.admission.verdict import Admission
    from ingress.http1.head import RequestHead
    from ingress.http1.headers import Rewrite


def rewriter(head: RequestHead, admission: Admission, upstream_host: bytes, trusted: bool) -> Rewrite | None:
    """What has to be put back in the answer to this request: by path its prefix, else the Host where it was changed.

    upstream_host: the one to show where the sandbox has none of its own. trusted: a proxy before us is.
    """
    fields = head.fields
    host = fields.get(b"host") or b""
    prefix = admission.prefix
    if prefix:
        if trusted:  # a prefix of the proxy's own that it has taken off, and has told the application
            prefix = (fields.get(b"x-forwarded-prefix") or b"").rstrip(b"/") + prefix
        return Rewriter(prefix, _origins(host, admission, upstream_host), admission.jar)
    shown = admission.authority or upstream_host
    return partial(put_back, shown) if shown and shown != host else None


def _origins(host: bytes, admission: Admission, upstream_host: bytes) -> frozenset[bytes]:
    """The authorities by which an application may mean itself."""
    names = {host.lower(), admission.authority.lower(), upstream_host.lower()}
    port = b":%d" % admission.port
    target = admission.sandbox.host.encode()
    for name in (b"localhost", b"127.0.0.1", b"[::1]", b"0.0.0.0", b"[%b]" % target if b":" in target else target):
        names.add(name + port)
        if admission.port in (80, 443):
            names.add(name)
    return frozenset(names - {b""})


class Rewriter:
    """Called with a response field's lower-case name and value; gives the value for the client.

    prefix: what was taken off the path, no slash at its end. origins: the authorities (`host` or `host:port`, lower
    case) that mean the application itself. jar: how the names of its cookies for the whole host begin, b"" for none.
    """

    __slots__ = ("_jar", "_origins", "_prefix", "_slashed")

    def __init__(self, prefix: bytes, origins: frozenset[bytes], jar: bytes = b"") -> None:
        self._prefix = prefix
        self._slashed = prefix + b"/"
        self._origins = origins
        self._jar = jar

    def __call__(self, name: bytes, value: bytes) -> list[bytes]:
        return self.cookie(value) if name == b"set-cookie" else [self.reference(value)]

    def reference(self, value: bytes) -> bytes:
        """A Location or Content-Location. Relative ones and other people's stay as they are."""
        if value.startswith(b"/") and not value.startswith(b"//"):
            return self._within(value)
        scheme, mark, rest = value.partition(b"//")
        if not mark or scheme.lower() not in (b"", b"http:", b"https:"):
            return value
        ends = [at for at in (rest.find(b"/"), rest.find(b"?"), rest.find(b"#")) if at >= 0]
        cut = min(ends, default=len(rest))
        if rest[:cut].lower() not in self._origins:
            return value
        path = rest[cut:]
        return self._within(path if path.startswith(b"/") else b"/" + path)

    def cookie(self, value: bytes) -> list[bytes]:
        """A Set-Cookie: for its own host, for its own prefix, and with a jar for that as well.

        A `__Host-` cookie has to keep Path=/ or is refused; with a jar it is in there alone.
        """
        pair, *attributes = value.split(b";")
        kept = []
        path = b""
        for attribute in attributes:
            name, _, text = attribute.partition(b"=")
            low = name.strip(b" \t").lower()
            if low == b"path":
                path = text.strip(b" \t")
            elif low != b"domain":
                kept.append(attribute)
        pair_name = pair.partition(b"=")[0].strip(b" \t")
        host_bound = pair_name.lower().startswith(b"__host-")  # browsers compare without case
        jarred = []
        if self._jar and pair_name and b"=" in pair:
            hidden = kept if any(part.strip(b" \t").lower() == b"httponly" for part in kept) else [*kept, b" HttpOnly"]
            jarred = [b";".join([self._jar + pair.lstrip(b" \t"), *hidden, b" Path=" + self._without(path)])]
            if host_bound:
                return jarred
        if host_bound:
            kept.append(b" Path=/")
        elif path.startswith(b"/"):
            kept.append(b" Path=" + self._within(path))
        elif path or self._jar:
            kept.append(b" Path=" + self._slashed)
        # Without a Path a browser takes the request's own folder; where there is no jar that is under the prefix.
        return [b";".join([pair, *kept]), *jarred]

    def _without(self, path: bytes) -> bytes:
        """A cookie's path as the application's absolute links have it."""
        inner = path[len(self._prefix) :] if path == self._prefix or path.startswith(self._slashed) else path
        return inner if inner.startswith(b"/") else b"/"

    def _within(self, reference: bytes) -> bytes:
        cut = min([at for at in (reference.find(b"?"), reference.find(b"#")) if at >= 0], default=len(reference))
        path = unquote_to_bytes(reference[:cut])
        known = path == self._prefix or path.startswith(self._slashed)
        if known and b".." not in path.split(b"/"):  # a path that climbs out of the prefix again doesn't know it
            return reference
        return self._prefix + reference


# Nothing that a browser could take for another host: it passes over tabs, and a backslash is a slash to it.
_OWN_URL = re.compile(rb"(?:https?:)?//([^/?#]*)(/(?![/\\])[!-~\x80-\xff]*|)", re.IGNORECASE).fullmatch


def put_back(shown: bytes, name: bytes, value: bytes) -> list[bytes]:
    """A field's value where the application was shown another Host than the client's, `shown`, and has no prefix: what
    it says of itself by that name is said of where the client is. Else as it is, and cookies are."""
    if name != b"set-cookie":
        match = _OWN_URL(value)
        if match is not None and match[1].lower() == shown.lower():
            return [match[2] or b"/"]
    return [value]


def jar(prefix: bytes) -> bytes:
    """How the names of a sandbox's cookies for the whole host begin; `prefix` begins with /sandbox/port."""
    place = b"/".join(prefix.split(b"/")[1:3])
    return b"sallyport-jar-%b-" % sha256(place).hexdigest()[:16].encode()
