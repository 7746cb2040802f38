"""A second transparent interceptor in the namespace is told by its chains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.firewall import nft
from egress.firewall.guardhouse import Firewall
from egress.netns import Namespace

if TYPE_CHECKING:
    from lab import Lab


def test_a_service_mesh_beside_us_is_seen(lab: Lab) -> None:
    with lab.sandbox.entered():
        firewall = Firewall(Namespace())
        assert firewall.neighbours() == ()
        nft.run("table ip nat\nadd chain ip nat ISTIO_OUTPUT\nadd chain ip nat DOCKER_OUTPUT\n")
        assert firewall.neighbours() == ("Istio",)
        firewall.close()
