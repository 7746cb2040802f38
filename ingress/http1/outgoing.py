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
    """The head, whole. Its fields are kept with the header section that they were made from."""
    fields = head.fields
    memo = fields.memo
    known = memo.get("request")
    if known is not None and known[0] is outside and known[1] == admission.prefix and known[2] == admission.authority:
        lines = memo.get("lines")
        if lines is None:
            lines = memo["lines"] = known[3].apply(fields)
    else:
        core = endpoint.core
        upgrade = b"upgrade" in fields
        websocket = upgrade and wants_websocket(head)
        shown = admission.authority or core.upstream_host or fields.get(b"host") or endpoint.authority()
        recipe = request_recipe(fields, outside, core.stripped, shown, admission.prefix, websocket, admission.jar)
        lines = memo["lines"] = recipe.apply(fields)
        # What an upgrade becomes depends on the method too, which the section does not tell.
        memo["request"] = None if upgrade else (outside, admission.prefix, admission.authority, recipe)
    length = head.length
    if length == 0:
        framing = b"Content-Length: 0\r\n\r\n" if b"content-length" in fields else b"\r\n"
    elif length == CHUNKED:
        framing = b"Transfer-Encoding: chunked\r\n\r\n"
    else:
        framing = b"Content-Length: %d\r\n\r\n" % length
    return b"%b %b HTTP/1.1\r\n%b%b" % (head.method, admission.target, lines, framing)


def wants_websocket(head: RequestHead) -> bool:
    """Is this the opening of a WebSocket (RFC 6455 section 4.1)?"""
    return head.method == b"GET" and head.version == 11 and head.length == 0 and is_websocket(head.fields)


def too_large(limit: int) -> Refusal:
    """The request's body is over the operator's limit."""
    return Refusal(413, "body_too_large", f"the request's body is over {limit} bytes, which is the limit", close=True)
