"""A request's head for the sandbox, written from what the gate said and from what is known of the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingress.http1.head import CHUNKED, RequestHead
from ingress.http1.headers import is_websocket, request_recipe
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.admission.verdict import Admission
    from ingress.http1.endpoint import Endpoint
    from ingress.http1.headers import Outside


def request_head(head: RequestHead, admission: Admission, outside: Outside, endpoint: Endpoint) -> bytes:
    """The head, whole. What it was made by is kept with the header section that it was made from, and so is it."""
    fields = head.fields
    target = admission.target
    known = fields.memo.get("request")
    if known is not None and known[0] is outside and known[1] == admission.prefix and known[2] == admission.authority:
        made = fields.made
        if made is not None:
            if made[1] == target and made[0] == head.method:
                return made[2]
            rest = made[2][made[3] :]
        else:
            rest = known[3].apply(fields) + _framing(head)
    else:
        core = endpoint.core
        upgrade = b"upgrade" in fields
        websocket = upgrade and wants_websocket(head)
        shown = admission.authority or core.upstream_host or fields.get(b"host") or endpoint.authority()
        recipe = request_recipe(fields, outside, core.stripped, shown, admission.prefix, websocket, admission.jar)
        rest = recipe.apply(fields) + _framing(head)
        # What an upgrade becomes depends on the method too, which the section does not tell.
        fields.memo["request"] = None if upgrade else (outside, admission.prefix, admission.authority, recipe)
    request = b"%b %b HTTP/1.1\r\n%b" % (head.method, target, rest)
    fields.made = (head.method, target, request, len(request) - len(rest))
    return request


def _framing(head: RequestHead) -> bytes:
    """The body's framing, and the empty line."""
    length = head.length
    if length == 0:
        return b"Content-Length: 0\r\n\r\n" if b"content-length" in head.fields else b"\r\n"
    return b"Transfer-Encoding: chunked\r\n\r\n" if length == CHUNKED else b"Content-Length: %d\r\n\r\n" % length


def wants_websocket(head: RequestHead) -> bool:
    """Is this the opening of a WebSocket (RFC 6455 section 4.1)?"""
    return head.method == b"GET" and head.version == 11 and head.length == 0 and is_websocket(head.fields)


def too_large(limit: int) -> Refusal:
    """The request's body is over the operator's limit."""
    return Refusal(413, "body_too_large", f"the request's body is over {limit} bytes, which is the limit", close=True)
