"""The request headers of Kubernetes agent-sandbox's router (its SDK is `k8s-agent-sandbox`). Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from ingress.refusal import Refusal
from policies.address import AddressError, format_address, parse_address

if TYPE_CHECKING:
    from ingress.head import Fields
    from ingress.routes import Sandbox

AGENT_HEADERS = frozenset(
    (b"x-sandbox-id", b"x-sandbox-namespace", b"x-sandbox-port", b"x-sandbox-timeout", b"x-sandbox-pod-ip")
)
_LABEL = re.compile(rb"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")


class AgentRoute(NamedTuple):
    """What a request names."""

    sandbox: str
    namespace: str
    port: int
    timeout: float
    """Seconds."""
    address: str
    """The address of the sandbox that the caller prefers, in its usual spelling; "": none."""


def read_agent_route(fields: Fields, most: float) -> AgentRoute:
    """What a request names; 400 where it can't be read. `most`: the time-out's cap, seconds."""
    sandbox = _once(fields, b"x-sandbox-id")
    if not sandbox:
        raise _bad("X-Sandbox-ID is needed: the name of a sandbox")
    if not _LABEL.fullmatch(sandbox):
        raise _bad("X-Sandbox-ID is not a DNS label: lower-case letters, digits and hyphens, at most 63")
    namespace = _once(fields, b"x-sandbox-namespace")
    if namespace is None:
        namespace = b"default"
    if not _LABEL.fullmatch(namespace):
        raise _bad("X-Sandbox-Namespace is not a DNS label: lower-case letters, digits and hyphens, at most 63")
    port = _once(fields, b"x-sandbox-port")
    if port is None:
        port = b"8888"
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise _bad("X-Sandbox-Port is not a port from 1 to 65535")
    address = _once(fields, b"x-sandbox-pod-ip") or b""
    return AgentRoute(
        sandbox.decode(), namespace.decode(), int(port), _timeout(fields, most), _address(address) if address else ""
    )


def at_address(sandbox: Sandbox, address: str) -> Sandbox:
    """The sandbox at the address that the caller chose among its own; 400 where it is none of them."""
    if not address or address == sandbox.host:
        return sandbox
    if address not in sandbox.addresses:
        raise _bad("X-Sandbox-Pod-IP is no address of this sandbox; leave it out")
    return sandbox._replace(host=address)


def host_and_port(host: str, port: int) -> bytes:
    """What the application is shown as Host: where it is, and nothing of the caller's."""
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()


def _once(fields: Fields, name: bytes) -> bytes | None:
    values = fields.all(name)
    if len(values) > 1:
        raise _bad(f"more than one {name.decode()} header; send it once")
    return values[0] if values else None


def _timeout(fields: Fields, most: float) -> float:
    """What is no positive number of seconds doesn't count, and nothing counts above the cap."""
    values = fields.all(b"x-sandbox-timeout")
    if len(values) != 1 or not _SECONDS.fullmatch(values[0]):
        return most
    seconds = float(values[0])
    return min(seconds, most) if isfinite(seconds) and seconds > 0 else most


def _address(text: bytes) -> str:
    try:
        return format_address(parse_address(text.decode("latin-1")))
    except AddressError:
        raise _bad("X-Sandbox-Pod-IP is not an address") from None


def _bad(message: str) -> Refusal:
    return Refusal(400, "bad_route", message)
