"""A second transparent interceptor in the namespace is told by its redirections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.firewall import nft
from egress.firewall.redirects import redirects

if TYPE_CHECKING:
    from lab import Lab

_RULES = """table ip nat {
	chain DOCKER_OUTPUT {
		ip daddr 127.0.0.11 tcp dport 53 dnat to 127.0.0.11:41234
	}
	chain ISTIO_OUTPUT {
		tcp dport 1-65535 redirect to :15001
	}
	chain OUTPUT {
		type nat hook output priority -100; policy accept;
		jump DOCKER_OUTPUT
		jump ISTIO_OUTPUT
	}
}
"""


def test_a_service_mesh_beside_us_is_seen(lab: Lab) -> None:
    with lab.sandbox.entered():
        assert redirects() == ()
        nft.run(_RULES)
        assert [redirect.owner for redirect in redirects() if not redirect.docker] == ["Istio"]
