"""Loading: the real nft takes every golden file; nothing is lost or let through while a ruleset is replaced."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from egress.firewall import FirewallError, nft
from egress.firewall.guardhouse import Firewall
from tests.real.firewall.conftest import EVERYTHING, packed, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab import Lab
    from tests.real.firewall.conftest import Guarded

GOLDEN = sorted((Path(__file__).parents[2] / "pure/firewall/golden").glob("*.nft"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_nft_takes_the_golden_files(lab: Lab, path: Path) -> None:
    assert lab.sandbox.run(["nft", "-c", "-f", str(path)]).stderr == ""
    for _ in range(2):
        lab.sandbox.run(["nft", "-f", str(path)], check=True)
    assert "table inet sallyport {" in lab.sandbox.run(["nft", "list", "ruleset"], timeout=5, check=True).stdout


def test_a_packet_that_the_rules_before_let_through_comes_to_its_device(guarded: Guarded) -> None:
    """It waits for the gateway's address, with a stamp that was another's by the time it comes to the last door."""
    lab, target = guarded.lab, "198.51.100.10"
    learned = {0: [(packed(target), 60000)]}
    guarded.load(learned=learned)
    assert lab.udp(target, 7) == "connected"
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        sock.connect((target, 7))
        lab.internet.namespace.sysctl({"net.ipv4.conf.all.arp_ignore": 8})
        try:
            lab.sandbox.ip("neigh", "del", lab.link.gateway, "dev", "eth0")
            sock.send(b"early")
            guarded.load(learned=learned)
        finally:
            lab.internet.namespace.sysctl({"net.ipv4.conf.all.arp_ignore": 0})
        assert sock.recv(100) == b"early"
    assert guarded.firewall.unstamped() == 0


def stamps(guarded: Guarded) -> int:
    """How many of them pass the last door."""
    chain = guarded.lab.sandbox.run(["nft", "list", "chain", "netdev", "sallyport", "egress"], check=True).stdout
    return chain.count("meta priority set")


def test_the_last_door_lets_one_stamp_pass_in_the_end(guarded: Guarded) -> None:
    guarded.load()
    guarded.load()
    spec = guarded.spec()
    guarded.firewall.load(spec)
    assert stamps(guarded) > 1
    guarded.firewall.sweep()
    assert stamps(guarded) == 1
    assert guarded.firewall.intact()
    guarded.load()
    assert stamps(guarded) == 2
    guarded.firewall.rest()
    guarded.firewall.sweep()
    assert stamps(guarded) == 1
    assert not guarded.firewall._loader._nft.opened, "what was given back is given back again"


def test_who_takes_over_closes_the_last_door_behind_the_one_before(guarded: Guarded) -> None:
    guarded.load()
    spec = guarded.load()
    assert stamps(guarded) > 1
    heir = Firewall(guarded.namespace)
    assert heir.resume(spec)
    heir.sweep()
    assert stamps(guarded) == 1
    assert heir.intact()
    heir.close()
    another = Firewall(guarded.namespace)
    assert another.resume(spec)
    seen = guarded.lab.sandbox.run(["nft", "-a", "list", "chain", "netdev", "sallyport", "egress"], check=True).stdout
    another.sweep()  # nothing to do, and nothing done
    assert seen == guarded.lab.sandbox.run(["nft", "-a", "list", "chain", "netdev", "sallyport", "egress"]).stdout
    another.close()


def flood(guarded: Guarded, target: str, port: int, during: Callable[[], None]) -> tuple[int, list[OSError]]:
    """How many datagrams were sent, and what was said to those that were refused, while `during` ran over and over:
    for a second, and until both have had their thousand and their three."""
    stop = threading.Event()
    runs = 0

    def work() -> None:
        nonlocal runs
        while not stop.is_set():
            during()
            runs += 1

    worker = threading.Thread(target=work)
    sent, refused = 0, list[OSError]()
    with guarded.lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect((target, port))
        worker.start()
        begun = time.monotonic()
        while worker.is_alive() and (seconds := time.monotonic() - begun) < 60:
            if seconds > 1 and sent + len(refused) > 1000 and runs >= 3:
                break
            try:
                sock.send(b"flooding")
                sent += 1
            except BlockingIOError:
                pass
            except OSError as error:
                refused.append(error)
        stop.set()
        worker.join()
    assert runs >= 3
    return sent, refused


def test_nothing_denied_passes_while_rulesets_are_replaced(guarded: Guarded) -> None:
    plan = tuple(part(f"10.{number}.0.0/16", allow=EVERYTHING) for number in range(200))
    guarded.load(plan=plan)
    with guarded.lab.capture() as capture:
        sent, refused = flood(guarded, "198.51.100.66", 9, lambda: guarded.firewall.load(guarded.spec(plan=plan)))
        assert not capture.packets(0.1, payload=b"flooding")
    assert sent == 0
    assert len(refused) > 1000


def test_what_is_allowed_goes_on_while_rulesets_are_replaced(guarded: Guarded) -> None:
    learned = {0: [(packed("198.51.100.10"), 60000)]}
    guarded.load(learned=learned)
    sent, refused = flood(guarded, "198.51.100.10", 123, lambda: guarded.firewall.load(guarded.spec(learned=learned)))
    assert sent > 1000
    assert refused == []


def test_the_kernels_words_are_told(guarded: Guarded) -> None:
    with pytest.raises(FirewallError, match=r"syntax error"):
        guarded.namespace.inside(lambda: nft.run("table inet x { nonsense }\n"))
    with pytest.raises(FirewallError, match=r"No such file"):
        guarded.namespace.inside(lambda: nft.run("flush table inet absent\n"))


def test_a_kernel_without_comforts_gets_a_ruleset_all_the_same(guarded: Guarded) -> None:
    guarded.assume(socket_match=False, ct_timeout=False)
    guarded.firewall.load(guarded.spec())
    guarded.learn("198.51.100.10")
    assert guarded.lab.connect("198.51.100.10", 80) == "connected"
    assert guarded.lab.connect("198.51.100.20", 80) == "refused"


def test_what_a_kernel_lacks_is_found_out_and_left_out(guarded: Guarded) -> None:
    """Asked for something that no kernel has: the rest of the ruleset comes all the same, and the lack is reported."""
    from egress.firewall.abilities import negotiate
    from egress.firewall.tables import Site

    site = Site(raw="devices", devices=("lo", "eth0", "a name that is none"))
    found = negotiate(site, guarded.namespace, nft.Nft(), 5353)
    assert found.devices == ("lo", "eth0")
    assert (found.raw, found.log_group) == ("devices", 5353)
    assert found.socket_match
    assert found.ct_timeout
    assert found.ip_options
