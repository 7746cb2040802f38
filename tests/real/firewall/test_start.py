"""The start: shut by a message of our own before all else, and open again only behind a ruleset that is complete."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from egress.firewall import FirewallError, guardhouse
from egress.firewall.guardhouse import Firewall
from policies.ports import EVERYTHING
from tests.real.firewall import packets
from tests.real.firewall.conftest import WEB, packed, part

if TYPE_CHECKING:
    from tests.real.firewall.conftest import Guarded

SITE = pytest.mark.parametrize("site", ["198.51.100.10", "2001:db8:100::10"])
TARGET = pytest.mark.parametrize("target", ["198.51.100.66", "2001:db8:100::66"])


def tables(guarded: Guarded) -> str:
    return guarded.lab.sandbox.run(["nft", "list", "tables"], check=True).stdout


def reaches_itself(guarded: Guarded) -> bool:
    with guarded.lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(20)
        sock.sendto(b"here", sock.getsockname())
        return sock.recv(10) == b"here"


@SITE
def test_e12_shut_lets_nothing_out_and_a_ruleset_opens_it(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    assert lab.connect(site, 80) == "connected"
    guarded.firewall.close_up()
    assert lab.connect(site, 80, timeout=0.5) != "connected"
    assert lab.udp(site, 7, timeout=0.5) != "connected"
    assert reaches_itself(guarded)
    assert guarded.firewall.standing() is None
    whole = part(site + ("/128" if ":" in site else "/32"), allow=EVERYTHING)
    guarded.load(plan=(whole,))
    assert "sallyport_shut" not in tables(guarded)
    assert lab.connect(site, 80) == "connected"
    assert lab.connect("198.51.100.20", 80) == "refused"


@TARGET
def test_e12_shut_lets_no_frame_out(guarded: Guarded, target: str) -> None:
    lab = guarded.lab
    here = lab.link.sandbox6 if ":" in target else lab.link.sandbox
    frame = packets.ethernet(lab, packets.udp(here, 4444, target, 9, b"smuggled"))
    with lab.capture() as wire:
        packets.send_frame(lab, "eth0", frame)
        assert wire.arrived(payload=b"smuggled")
    guarded.firewall.close_up()
    with lab.capture() as wire:
        packets.send_frame(lab, "eth0", frame)
        packets.send_frame(lab, "eth0", frame, bypass=True)
        assert not wire.packets(0.2, payload=b"smuggled")


def test_e12_shut_lets_nobody_speak_for_others_over_loopback(guarded: Guarded) -> None:
    """Connection tracking may be awake: it would take the forged flow for one from outside."""

    def forged(seconds: float) -> bytes:
        with guarded.lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.settimeout(seconds)
            packet = packets.udp("198.51.100.10", 80, "127.0.0.1", sock.getsockname()[1], b"believe me")
            packets.send_ip(guarded.lab, packet)
            try:
                return sock.recv(20)
            except TimeoutError:
                return b""

    guarded.lab.sandbox.sysctl({"net.ipv4.conf.all.rp_filter": 0, "net.ipv4.conf.lo.rp_filter": 0})
    guarded.lab.sandbox.sysctl({"net.ipv4.conf.all.route_localnet": 1, "net.ipv4.conf.lo.accept_local": 1})
    assert forged(20) == b"believe me"
    guarded.firewall.close_up()
    assert forged(0.5) == b""
    assert reaches_itself(guarded)


def test_e12_killed_before_it_could_open(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete ruleset stands, and all is still shut: the next life finds both, and opens."""

    def killed(*_: Any) -> None:
        raise FirewallError("killed")

    lab = guarded.lab
    site = "198.51.100.10"
    guarded.firewall.close_up()
    with monkeypatch.context() as patched:
        patched.setattr(guardhouse, "reopen", killed)
        spec = guarded.spec(learned={0: [(packed(site), 60000)]}, digest="abc")
        with pytest.raises(FirewallError, match="killed"):
            guarded.firewall.load(spec)
    assert lab.connect(site, 80, timeout=0.5) != "connected"
    second = Firewall(guarded.namespace)
    second.close_up()
    try:
        assert lab.connect(site, 80, timeout=0.5) != "connected", "until somebody is there who answers for it"
        assert second.resume(spec)
        assert lab.connect(site, 80) == "connected"
        assert lab.connect("198.51.100.20", 80) == "refused"
        second.refresh()
        assert second.intact()
    finally:
        second.close()


def test_e12_killed_before_anything_was_loaded(guarded: Guarded) -> None:
    """What came before stays shut; the next life begins as the first did."""
    guarded.firewall.close_up()
    second = Firewall(guarded.namespace)
    try:
        second.close_up()
        assert guarded.lab.connect("198.51.100.10", 80, timeout=0.5) != "connected"
        second.deny()
        assert guarded.lab.connect("198.51.100.10", 80) == "refused"
        assert "sallyport_shut" not in tables(guarded)
    finally:
        second.close()


def test_a_first_ruleset_is_replaced_like_any_other(guarded: Guarded) -> None:
    """Its names are nobody's load's, the next one's are; of the first nothing is left."""
    guarded.firewall.close_up()
    plan = (part("198.51.100.20/32", allow=WEB), part("198.51.100.66/32", deny=EVERYTHING))
    guarded.load(plan=plan)
    assert guarded.lab.connect("198.51.100.20", 80) == "connected"
    spec = guarded.load(plan=plan)
    assert guarded.lab.connect("198.51.100.20", 80) == "connected"
    assert guarded.lab.connect("198.51.100.66", 80) == "refused"
    named = guarded.lab.sandbox.run(["nft", "list", "table", "inet", "sallyport"], check=True).stdout
    assert "load_" not in named
    assert f"neighbours_{spec.flow_mark:08x}" in named
    assert "chain neighbours {" not in named
