"""What the ruleset opens and refuses, with real packets, IPv4 and IPv6 alike."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from egress.firewall import nft
from egress.firewall.ruleset import learned_set
from policies.address import Network
from policies.ports import EVERYTHING, FULL, PortSet
from tests.real.firewall import packets
from tests.real.firewall.conftest import WEB, packed, part

if TYPE_CHECKING:
    from tests.real.firewall.conftest import Guarded

SITE = pytest.mark.parametrize("site", ["198.51.100.10", "2001:db8:100::10"])


@SITE
def test_lockdown_refuses_everything_at_once(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    assert lab.connect(site, 80) == "connected"
    assert lab.udp(site, 7) == "connected"
    assert guarded.firewall.lock()
    assert lab.connect(site, 80) == "refused"
    assert lab.connect(site, 53) == "refused"
    assert lab.udp(site, 7) in ("admin-prohibited", "dropped")
    assert lab.udp(site, 53) in ("admin-prohibited", "dropped")
    assert lab.ping(site) in ("admin-prohibited", "dropped")


@SITE
def test_an_intact_table_is_the_lockdown(guarded: Guarded, site: str) -> None:
    guarded.load(digest="abc123")
    guarded.learn(site)
    assert not guarded.firewall.lock()
    assert guarded.lab.connect(site, 80) == "connected"
    standing = guarded.firewall.standing()
    assert standing is not None
    assert (standing.mode, standing.digest, standing.raw) == ("dns+nft", "abc123", True)


def test_a_damaged_table_is_not(guarded: Guarded) -> None:
    for damage in (
        "delete table netdev sallyport",
        "flush chain inet sallyport output",
        "add chain inet sallyport output { policy accept; }",
        "delete table inet sallyport",
        "add table inet sallyport { flags dormant; }",
    ):
        guarded.load()
        guarded.learn("198.51.100.10")
        assert guarded.firewall.intact()
        guarded.lab.sandbox.nft(damage + "\n")
        assert not guarded.firewall.intact(), damage
        assert guarded.firewall.lock(), damage
        assert guarded.lab.connect("198.51.100.10", 80) == "refused"


@SITE
def test_inbound_is_answered_under_lockdown(guarded: Guarded, site: str) -> None:
    guarded.firewall.lock()
    ipv6 = ":" in site
    with guarded.lab.sandbox.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("", 8080))
        server.listen()
        server.settimeout(10)
        host = guarded.lab.link.sandbox6 if ipv6 else guarded.lab.link.sandbox
        with guarded.lab.internet.namespace.entered():
            client = socket.create_connection((host, 8080), 10)
        with client, server.accept()[0] as accepted:
            accepted.send(b"hello")
            assert client.recv(5) == b"hello"


@SITE
def test_a_learned_address_opens_on_its_classs_ports(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    guarded.load()
    assert lab.connect(site, 80) == "refused"
    guarded.learn(site, 1)
    assert lab.connect(site, 80) == "connected"
    assert lab.udp(site, 443) == "connected"
    assert lab.connect(site, 8080) == "refused"
    assert lab.connect(site, 853) == "refused"
    assert lab.udp(site, 123) != "connected"
    assert lab.ping(site) != "connected"
    guarded.learn(site, 0)
    assert lab.connect(site, 8080) == "connected"
    assert lab.udp(site, 123) == "connected"
    assert lab.ping(site) == "connected"
    assert lab.connect(site, 853) == "refused"
    assert lab.udp(site, 853) != "connected"
    for index in (0, 1):
        guarded.forget(site, name=learned_set(len(packed(site)), index))
    assert lab.connect(site, 80) == "refused"


def test_a_lease_ends(guarded: Guarded) -> None:
    """One that came with the ruleset, and one that was learned since."""

    def opened(milliseconds: int) -> None:
        guarded.load(learned={0: [(packed("198.51.100.20"), milliseconds)]})
        guarded.learn("198.51.100.10", seconds=milliseconds / 1000)

    def refused() -> bool:
        return all(guarded.lab.connect(host, 80) == "refused" for host in ("198.51.100.10", "198.51.100.20"))

    opened(60_000)
    assert guarded.lab.connect("198.51.100.10", 80) == "connected"
    assert guarded.lab.connect("198.51.100.20", 80) == "connected"
    opened(1_000)
    assert packets.eventually(refused)


@SITE
def test_an_explicit_deny_beats_a_learned_address(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    prefix = "2001:db8:100::/48" if ":" in site else "198.51.100.0/24"
    guarded.load(plan=(part(prefix, deny=PortSet(((80, 80),), (), True)),))
    guarded.learn(site)
    assert lab.connect(site, 80) == "refused"
    assert lab.ping(site) != "connected"
    assert lab.connect(site, 8080) == "connected"
    guarded.load(plan=(part(prefix, deny=FULL),))
    guarded.learn(site)
    assert lab.connect(site, 8080) == "refused"


@SITE
def test_address_rules_open_their_ports(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    prefix = "2001:db8:100::/48" if ":" in site else "198.51.100.0/24"
    guarded.load(plan=(part(prefix, allow=WEB),))
    assert lab.connect(site, 80) == "connected"
    assert lab.connect(site, 8080) == "refused"
    with_dot = PortSet(((853, 853),), ((853, 853),), False)
    guarded.load(plan=(part(prefix, allow=with_dot),))
    assert lab.connect(site, 853) == "connected"
    assert lab.udp(site, 853) == "connected"


@SITE
def test_default_allow_holds_learned_addresses_to_their_ports(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    guarded.load(default_allow=True)
    assert lab.connect(site, 8080) == "connected"
    assert lab.udp(site, 7) == "connected"
    assert lab.ping(site) == "connected"
    assert lab.connect(site, 853) == "refused"
    guarded.learn(site, 1)
    assert lab.connect(site, 8080) == "refused"
    assert lab.connect(site, 80) == "connected"
    guarded.learn(site, 0)
    assert lab.connect(site, 8080) == "connected"


@SITE
def test_doh_is_refused_where_it_is_listed(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    other = "2001:db8:200::10" if ":" in site else "198.51.100.20"
    network = Network(packed(site), 128 if ":" in site else 32)
    guarded.load(default_allow=True, doh_networks=(network,))
    assert lab.connect(site, 443) == "refused"
    assert lab.udp(site, 443) != "connected"
    assert lab.connect(site, 80) == "connected"
    assert lab.connect(other, 443) == "connected"
    guarded.load(default_allow=True, doh_all=True)
    assert lab.connect(other, 443) == "refused"
    assert lab.connect(other, 80) == "connected"


@SITE
def test_other_protocols_are_refused(guarded: Guarded, site: str) -> None:
    """SCTP to an address where everything is open."""
    lab = guarded.lab
    family = socket.AF_INET6 if ":" in site else socket.AF_INET
    with lab.capture() as capture, lab.sandbox.socket(family, socket.SOCK_RAW, 132) as sock:
        sock.sendto(b"\1\2\3\4control!", (site, 0))
        assert capture.arrived(payload=b"control!")
        guarded.load(plan=(part(f"{site}/128" if ":" in site else f"{site}/32", allow=EVERYTHING),), default_allow=True)
        try:
            sock.sendto(b"\1\2\3\4guarded!", (site, 0))
        except OSError:
            pass
        assert not capture.packets(0.2, payload=b"guarded!")


def test_dns_mode_filters_dns_alone(guarded: Guarded) -> None:
    lab = guarded.lab
    guarded.load()
    guarded.load(mode="dns", exempt=(packed("9.9.9.9"),))
    for site in ("198.51.100.10", "2001:db8:100::10"):
        assert lab.connect(site, 80) == "connected"
        assert lab.udp(site, 7) == "connected"
        assert lab.ping(site) == "connected"
        assert lab.connect(site, 853) == "refused"
        assert lab.udp(site, 853) != "connected"
    lab.dns.a("api.example.com", "198.51.100.10")
    assert lab.query("api.example.com", server="9.9.9.9").addresses == ["198.51.100.10"]
    standing = guarded.firewall.standing()
    assert standing is not None
    assert standing.mode == "dns"
    assert not standing.raw


def test_a_refused_load_leaves_what_stood(guarded: Guarded) -> None:
    guarded.load()
    guarded.learn("198.51.100.10")
    twice = part("198.51.100.0/24", allow=WEB)
    with pytest.raises(Exception, match=r"exist|overlap|conflict"):
        guarded.load(plan=(twice, part("198.51.100.0/25", deny=FULL)._replace(allow=EVERYTHING), twice))
    assert guarded.lab.connect("198.51.100.10", 80) == "connected"
    assert guarded.lab.connect("198.51.100.20", 80) == "refused"


def test_foreign_tables_stay(guarded: Guarded) -> None:
    guarded.lab.sandbox.nft("table ip docker {\n chain c {\n  counter\n }\n}\n")
    guarded.firewall.lock()
    guarded.load()
    guarded.load(mode="dns")
    listing = guarded.namespace.inside(lambda: nft.run("list tables"))
    assert "table ip docker" in listing
