"""Others that redirect connections in the same namespace: a service mesh's sidecar is a second transparent interceptor.

Both at once is a conflict that nobody sees coming: the mesh carries the sandbox's connections to its own proxy, over
loopback, and the proxy reaches where it likes. It can be told by the names of its chains, which are part of how each
mesh is operated. What iptables-legacy holds is invisible over this interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.firewall.nfnetlink import DUMP, GETCHAIN, attributes, dump, message

if TYPE_CHECKING:
    import socket

_MESHES = (
    ("ISTIO_", "Istio"),
    ("PROXY_INIT_", "Linkerd"),
    ("KUMA_", "Kuma"),
    ("CONSUL_PROXY_", "Consul"),
    ("MESH_", "a service mesh"),
)
_FAMILIES = (1, 2, 10)  # NFPROTO_INET, _IPV4, _IPV6


def interceptors(sock: socket.socket) -> tuple[str, ...]:
    """The service meshes that have rules in this namespace. Raises FirewallError."""
    found: dict[str, None] = {}
    for family in _FAMILIES:
        for _, body in dump(sock, message(GETCHAIN, DUMP, 4, family, b""), 4):
            name = attributes(body).get(3, b"").rstrip(b"\0").decode(errors="replace").upper()
            for beginning, mesh in _MESHES:
                if name.startswith(beginning):
                    found[mesh] = None
    return tuple(found)
