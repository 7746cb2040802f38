"""The request headers of Kubernetes agent-sandbox's router (its SDK is `k8s-agent-sandbox`). Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from ingress.refusal import Refusal
from policies.address import AddressError, format_address, parse_address
from policies.special import AddressClass, classify

if TYPE_CHECKING:
    from ingress.http1.head import Fields
    from ingress.routes import Sandbox

AGENT_HEADERS = frozenset(
    (b"x-sandbox-id", b"x-sandbox-namespace", b"x-sandbox-port", b"x-sandbox-timeout", b"x-sandbox-pod-ip")
)
_LABEL = re.compile(rb"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_SECONDS = re.compile(rb"(?:[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})(?:[eE][+-]?[0-9]{1,2})?")
_STATUS = {"unknown_sandbox": 502, "unknown_port": 400}


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


def place(sandbox: Sandbox, asked: AgentRoute, domain: str) -> tuple[Sandbox, bytes]:
    """The sandbox at the address that is dialled, and the Host that the application is shown.

    An address that the caller names is a hint: dialled where it is one of the sandbox's own. SDKs keep it for as long
    as they get no 5xx, so one of a pod that is gone (400 would keep it for ever) or that we haven't heard of yet leads
    to where the sandbox is known to be. 400 for a loopback, link-local, metadata, multicast or unspecified one.
    domain: of the cluster, in the name of a sandbox; "": as the sandbox says.
    """
    addresses = sandbox.addresses
    host = asked.address
    if host and host not in addresses:
        if host != sandbox.host and classify(parse_address(host)).address_class in _SHUT:
            raise _bad("X-Sandbox-Pod-IP is not an address that a sandbox can have; leave it out")
        host = ""
    name = host or _named(sandbox, domain)
    if not host and not sandbox.port_map:
        host = addresses[0] if addresses else name  # no look-up, and no name server that is a moment behind
    shown = sandbox.upstream_host.encode() or host_and_port(name, asked.port)
    return (sandbox._replace(host=host) if host else sandbox), shown


def in_the_routers_words(refusal: Refusal) -> Refusal:
    """A refusal with the status that this wire's clients know for it.

    404 would be a file that the sandbox doesn't have. They try GET, PUT and DELETE again after 502, 503 and 504, and
    without Retry-After for three times as long as with it.
    """
    refusal.status = _STATUS.get(refusal.code, refusal.status)
    if refusal.code == "not_ready":
        refusal.retry_after = 0
    return refusal


def host_and_port(host: str, port: int) -> bytes:
    """What the application is shown as Host: where it is, and nothing of the caller's."""
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()


def _named(sandbox: Sandbox, domain: str) -> str:
    """Its host; a service's name in the operator's cluster domain, since early controllers always say cluster.local."""
    service, found, _ = sandbox.host.partition(".svc.")
    return f"{service}.svc.{domain}" if domain and found else sandbox.host


def _once(fields: Fields, name: bytes) -> bytes | None:
    values = fields.all(name)
    if len(values) > 1:
        raise _bad(f"more than one {name.decode()} header; send it once")
    return values[0] if values else None


_SHUT = (AddressClass.SPECIAL, AddressClass.NEVER)


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
