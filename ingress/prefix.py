"""Path mode for applications that don't know of it: what they say of themselves gets their prefix back. Pure.

An application behind `/box/8080` that redirects to `/login` means `/box/8080/login`, and a cookie for `/` is meant for
its own pages only: on a shared host the next sandbox must not see it (RFC 6265 section 5.1.4).
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes


class Rewriter:
    """Called with a response field's lower-case name and value; gives the value for the client.

    prefix: what was taken off the path, no slash at its end. origins: the authorities (`host` or `host:port`, lower
    case) that mean the application itself.
    """

    __slots__ = ("_origins", "_prefix", "_slashed")

    def __init__(self, prefix: bytes, origins: frozenset[bytes]) -> None:
        self._prefix = prefix
        self._slashed = prefix + b"/"
        self._origins = origins

    def __call__(self, name: bytes, value: bytes) -> bytes:
        return self.cookie(value) if name == b"set-cookie" else self.reference(value)

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

    def cookie(self, value: bytes) -> bytes:
        """A Set-Cookie: for its own host, for its own prefix. A `__Host-` cookie has to keep Path=/ or is refused."""
        parts = value.split(b";")
        kept = [parts[0]]
        host_bound = parts[0].lstrip(b" \t").lower().startswith(b"__host-")  # browsers compare without case
        path = b""
        for part in parts[1:]:
            name, _, text = part.partition(b"=")
            low = name.strip(b" \t").lower()
            if low == b"domain":
                continue
            if low == b"path":
                path = text.strip(b" \t")
                continue
            kept.append(part)
        if host_bound:
            kept.append(b" Path=/")
        elif path.startswith(b"/"):
            kept.append(b" Path=" + self._within(path))
        elif path:
            kept.append(b" Path=" + self._slashed)
        # Without a Path a browser takes the request's own folder, which is under the prefix already.
        return b";".join(kept)

    def _within(self, reference: bytes) -> bytes:
        cut = min([at for at in (reference.find(b"?"), reference.find(b"#")) if at >= 0], default=len(reference))
        path = unquote_to_bytes(reference[:cut])
        known = path == self._prefix or path.startswith(self._slashed)
        if known and b".." not in path.split(b"/"):  # a path that climbs out of the prefix again doesn't know it
            return reference
        return self._prefix + reference
