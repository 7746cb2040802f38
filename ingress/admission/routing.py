"""Which sandbox and port a request names: by header, by host name or by path. Pure: head in, route or refusal out.

- header: `OpenSandbox-Ingress-To: <sandbox>-<port>`, else the older `OPEN-SANDBOX-INGRESS`
- host: the first label of `Host`, `<sandbox>-<port>.any.domain`; a host name has no case, so this is in lower case
- uri: `/<sandbox>/<port>/<rest>`

Signed forms carry `-<expires>-<signature>`, or two further segments. They are read from the right and tried first; what
a signature can be (nine characters) a port can't (five digits), so a token has one reading at most.
Nothing is percent-decoded and nothing is normalised: what follows a prefix goes on octet for octet.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.head import Fields, RequestHead

ROUTING_HEADER = b"opensandbox-ingress-to"
OLD_ROUTING_HEADER = b"open-sandbox-ingress"
ROUTING_HEADERS = (ROUTING_HEADER, OLD_ROUTING_HEADER)
RENEW_HEADER = b"opensandbox-access-renew"
"""`skip` in it: this request renews no lease."""

ID_LENGTH = 128
"""The longest sandbox id, in characters."""

HEADER_HINT = "send `OpenSandbox-Ingress-To: <sandbox>-<port>`"
HOST_HINT = "use a host name such as <sandbox>-<port>.example.com"
URI_HINT = "begin the path with /<sandbox>/<port>/"

# An id is a token (RFC 9110 section 5.6.2) in every form, so that it can stand in a cookie's Path and in a Location.
_NAME = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128})"
_PORT = rb"([1-9][0-9]{0,4})"
_EXPIRES = rb"(0|[1-9a-z][0-9a-z]{0,12})"
_SIGNATURE = rb"([0-9a-f]{8}[0-9a-z])"
_TOKEN = re.compile(_NAME + rb"-" + _PORT + rb"(?:-" + _EXPIRES + rb"-" + _SIGNATURE + rb")?")
_PREFIX = re.compile(rb"/" + _NAME.replace(b"#", b"") + rb"/" + _PORT + rb"(?=[/?]|\Z)")
_SIGNED_PART = re.compile(rb"/" + _EXPIRES + rb"/" + _SIGNATURE + rb"(?=[/?]|\Z)")
_HOST = re.compile(
    rb"(?:([A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*\.?)|\[([0-9A-Fa-f:.]{2,45})\])(?::([0-9]{0,5}))?",
)
_ABSOLUTE = re.compile(rb"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_ID = re.compile(r"[!$&'*+.^_`|~0-9A-Za-z-]{1,128}")
_DEFAULT_PORTS = {b"http": 80, b"https": 443}


class Route(NamedTuple):
    """What a request names. Nothing here is verified; `expires` and `signature` are "" in an unsigned form."""

    sandbox: str
    port: int
    expires: str = ""
    """Unix seconds in base 36, as written."""
    signature: str = ""
    """Eight hex digits and the key's id."""


class Authority(NamedTuple):
    """A `Host`: name or address in lower case, v6 in brackets, and the port; None where none is given."""

    host: bytes
    port: int | None

    def agrees(self, other: Authority, default: int) -> bool:
        """Do both mean one place, where `default` is the scheme's port."""
        return self.host == other.host and (self.port or default) == (other.port or default)


def check_id(text: str) -> str:
    """What is wrong with an id that a provider offers, or ""."""
    if not _ID.fullmatch(text):
        return f"an id is 1 to {ID_LENGTH} ASCII letters, digits, '-', '_', '.' and a few other marks"
    return "an id made of dots is cut out of a path by browsers" if text in (".", "..") else ""


def bad_route(message: str) -> Refusal:
    """The answer to a request whose route can't be read."""
    return Refusal(400, "bad_route", message)


def parse_token(token: bytes) -> Route | None:
    """`<sandbox>-<port>` or `<sandbox>-<port>-<expires>-<signature>`, case kept; None where it is neither."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    sandbox, port, expires, signature = match.groups()
    number = int(port)
    if number > 65535:
        return None
    if expires is None:
        return Route(sandbox.decode(), number)
    return Route(sandbox.decode(), number, expires.decode(), signature.decode())


def header_token(fields: Fields) -> bytes | None:
    """The routing header that counts: the newer one, else the older. An empty one counts as absent; twice is 400."""
    found: bytes | None = None
    for name in ROUTING_HEADERS:
        values = fields.all(name)
        if not values:
            continue
        if len(values) > 1:
            raise bad_route(f"more than one {name.decode()} header; send it once")
        if found is None and values[0]:
            found = values[0]
    return found


def by_header(fields: Fields) -> Route | None:
    """The route in a header; None without one. 400 for a value that is no route token, a host name or URL too."""
    token = header_token(fields)
    if token is None:
        return None
    route = parse_token(token)
    if route is None:
        raise bad_route("the routing header is not <sandbox>-<port> (no scheme, no domain), such as my-box-8080")
    return route


def by_host(authority: Authority) -> Route | None:
    """The route in the first label of a host name, in lower case; None where it holds none."""
    return parse_token(authority.host.partition(b".")[0])


def by_path(target: bytes) -> tuple[Route, int] | None:
    """The unsigned route that an origin-form target begins with, and how many octets that is; None where it doesn't."""
    match = _PREFIX.match(target)
    if match is None:
        return None
    port = int(match[2])
    return (Route(match[1].decode(), port), match.end()) if port <= 65535 else None


def signed_part(target: bytes, start: int) -> tuple[str, str, int] | None:
    """`/<expires>/<signature>` at `start`: both, and where it ends; None where there is no such thing.

    Whether it is read so is the sandbox's to say: only one that needs access takes these segments for a signature.
    """
    match = _SIGNED_PART.match(target, start)
    if match is None:
        return None
    return match[1].decode(), match[2].decode(), match.end()


def inner_target(target: bytes, end: int) -> bytes:
    """What is left of a target behind its prefix, octet for octet; `/` goes first where nothing or a query is left."""
    rest = target[end:]
    return rest if rest.startswith(b"/") else b"/" + rest


def parse_authority(text: bytes) -> Authority:
    """A `Host` or the authority of a URL (RFC 9110 section 7.2). 400 where it is malformed or carries a user's name."""
    if not text:
        return Authority(b"", None)
    match = _HOST.fullmatch(text)
    if match is None:
        raise bad_route("a user's name in an authority" if b"@" in text else "a malformed Host")
    name, literal, port = match.groups()
    if literal is not None:
        try:
            name = (
                b"[" + socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, literal.decode())).encode()
            )
        except OSError:
            raise bad_route("a malformed Host") from None
        name += b"]"
    number = int(port) if port else None
    if number is not None and number > 65535:
        raise bad_route("a malformed Host: its port is over 65535")
    return Authority(name.lower(), number)


def authority_and_target(head: RequestHead) -> tuple[Authority, bytes]:
    """Who is asked, and the target in origin-form (or `*`), of any request line (RFC 9112 section 3.2).

    Absolute-form is taken where its authority agrees with Host; without a Host, in HTTP/1.0, it stands for one.
    """
    sent = head.fields.get(b"host")
    authority = parse_authority(sent or b"")
    target = head.target
    if target.startswith(b"/"):
        return authority, target
    if target == b"*":
        if head.method != b"OPTIONS":
            raise bad_route("the target `*` is for OPTIONS only")
        return authority, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise bad_route("the request target is neither a path nor an http URL")
    scheme, named, rest = match.groups()
    asked = parse_authority(named)
    if not asked.host:
        raise bad_route("the URL in the request line names no host")
    if sent is not None and not asked.agrees(authority, _DEFAULT_PORTS[scheme.lower()]):
        raise bad_route("the URL in the request line and Host name different places")
    if rest.startswith(b"#"):
        raise bad_route("a fragment in the request target")
    if not rest and head.method == b"OPTIONS":
        return asked, b"*"  # RFC 9112 section 3.2.4: how `OPTIONS *` travels through a proxy
    return (authority if sent is not None else asked), rest if rest.startswith(b"/") else b"/" + rest


def no_route(modes: frozenset[str]) -> Refusal:
    """The answer where nothing names a sandbox: with what would."""
    hints = [hint for mode, hint in (("header", HEADER_HINT), ("host", HOST_HINT), ("uri", URI_HINT)) if mode in modes]
    return bad_route("no sandbox is named: " + ", or ".join(hints))
