"""Between a table that a neighbour took away and the one that takes its place: closed, and no open flow is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from egress.firewall import FirewallError, guardhouse

if TYPE_CHECKING:
    from tests.real.firewall.conftest import Guarded

SITE = pytest.mark.parametrize("site", ["198.51.100.10", "2001:db8:100::10"])


@SITE
@pytest.mark.parametrize("damage", ["delete table inet sallyport", "flush table inet sallyport"])
def test_soak_an_open_flow_outlives_a_repair(
    guarded: Guarded, site: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The soak lost streams here: for a moment the deny-all of the repair refused their packets with a reset."""

    def refused(*_: Any) -> str:
        raise FirewallError("the moment between the two")

    spec = guarded.load()
    guarded.learn(site)
    lab = guarded.lab
    flow = lab.open(site, 8000)
    lab.sandbox.nft(damage + "\n")
    with monkeypatch.context() as patched:
        patched.setattr(guardhouse, "render", refused)
        with pytest.raises(FirewallError, match="between"):
            guarded.firewall.load(spec)
    flow.send(b"now")
    flow.settimeout(0.3)
    with pytest.raises(TimeoutError):
        flow.recv(10)
    assert lab.connect(site, 80) == "refused"
    guarded.firewall.load(spec)
    guarded.learn(site)
    flow.settimeout(10)
    assert flow.recv(10) == b"now"


@SITE
def test_the_lockdown_of_a_start_ends_open_flows(guarded: Guarded, site: str) -> None:
    """The control, and what is meant there: nobody knows when a policy will come, and applications hear it at once."""
    guarded.load()
    guarded.learn(site)
    flow = guarded.lab.open(site, 8000)
    guarded.firewall.lock(anew=True)
    flow.settimeout(10)
    flow.send(b"now")  # what it is answered comes with the next call
    with pytest.raises(ConnectionError):
        flow.recv(10)
