"""The tiny internet that tests, demo and benchmarks use: real namespaces, real packets, nothing leaves the machine.

    with Lab() as lab:
        lab.dns.a("api.example.com", lab.site("web"))
        with Sidecar(lab, policy={"defaultAction": "deny", "egress": [...]}) as sidecar:
            reply = lab.query("api.example.com")          # asked from inside the sandbox
            lab.connect(reply.addresses[0], 80)           # "connected", "refused", "admin-prohibited", …

What there is:

    sandbox namespace                      internet namespace
    eth0 10.77.n.2, fd77:n::2  ── veth ──  10.77.n.1, fd77:n::1
    the sidecar and its attackers          every other address there is: DNS on 53, HTTP on 80, 443 and 8080,
                                           echo, and peers that keep sending

Any address answers (`ip route add local default`), so a test needs no list of addresses, and each attempt that the
guard stops has its positive control: the same attempt without the guard arrives.
"""

from lab.errors import LabError, Lacking
from lab.identity import CONTAINER_ROOT, CONTAINER_ROOT_WITHOUT_RAW, NOBODY, ROOT, SIDECAR, Identity
from lab.namespace import Namespace
from lab.network import Internet, Lab
from lab.sidecar import Sidecar

__all__ = [
    "CONTAINER_ROOT",
    "CONTAINER_ROOT_WITHOUT_RAW",
    "NOBODY",
    "ROOT",
    "SIDECAR",
    "Identity",
    "Internet",
    "Lab",
    "LabError",
    "Lacking",
    "Namespace",
    "Sidecar",
]
