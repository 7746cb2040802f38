"""What the gateway allows and how long it waits; every value is a flag of `ingress serve` with this default."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Sizes in octets, times in seconds, 0 for none where a word says so."""

    head_bytes: int = 65_536
    """A request's or a response's head; above it 431, or 502."""
    head_fields: int = 128
    """Fields in a head; above it 431, or 502."""
    body_bytes: int = 0
    """A request's body; above it 413. 0: none."""
    connections: int = 16_384
    """Client connections of one worker; above it 503 and close."""
    connections_per_sandbox: int = 4_096
    """Upstream connections to one sandbox of one worker, tunnels included; above it 503."""
    inflight_per_sandbox: int = 1_024
    """Requests under way to one sandbox of one worker; above it 429."""
    idle_per_endpoint: int = 256
    """Idle upstream connections kept for one port of one sandbox."""
    buffer_bytes: int = 262_144
    """What may wait in one direction of one connection before its source is paused."""
    head_timeout: float = 10.0
    """From a request's first octet to the end of its head; 408."""
    idle_timeout: float = 75.0
    """A client's connection between two requests."""
    body_timeout: float = 60.0
    """A request's body, or a client that should read, without progress."""
    connect_timeout: float = 5.0
    """Opening a connection to a sandbox; 504."""
    response_timeout: float = 7_200.0
    """From the request's end to the response's head: long polls need it long; 504. 0: none."""
    stream_timeout: float = 3_600.0
    """A response's body without a byte. 0: none."""
    tunnel_timeout: float = 3_600.0
    """A WebSocket without a byte in either direction. 0: none."""
    upstream_idle: float = 4.0
    """How long an idle upstream connection is kept: below the five seconds after which common servers close theirs."""
    wait_ready: float = 0.0
    """How long a request waits for a sandbox that is known but not ready. 0: 503 at once."""
    drain: float = 30.0
    """How long open responses and streams may go on after SIGTERM."""
