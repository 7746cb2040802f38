"""The last door on every device by one empty prefix (Linux 6.16), asked for on purpose: see `devices.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from egress.firewall import devices
from egress.firewall.guardhouse import Firewall
from egress.firewall.nfnetlink import DELCHAIN, NETDEV, text
from egress.firewall.tables import TABLE
from egress.netns import NETLINK_NETFILTER
from tests.real.firewall import packets
from tests.real.firewall.conftest import packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.firewall.conftest import Guarded


@pytest.fixture
def everywhere(guarded: Guarded) -> Iterator[Guarded]:
    with guarded.namespace.netlink(NETLINK_NETFILTER) as sock:
        if not devices.make_prefix_chain(sock):
            pytest.skip("this kernel takes no prefix of device names (Linux 6.16)")
        devices.transact(sock, [(DELCHAIN, 0, NETDEV, text(1, TABLE) + text(3, "egress"))])
    guarded.firewall = Firewall(guarded.namespace, prefix=True)
    yield guarded
    guarded.lab.unguard()


@pytest.mark.timeout(30)
def test_it_holds_on_devices_that_come_and_nobody_is_told_of(everywhere: Guarded) -> None:
    lab, firewall = everywhere.lab, everywhere.firewall
    frame = packets.ethernet(lab, packets.udp(lab.link.sandbox, 4444, "198.51.100.66", 9, b"smuggled"))
    assert firewall.lock()
    assert firewall.capabilities().raw == "prefix"
    for _ in range(3):
        everywhere.load(learned={0: [(packed("198.51.100.10"), 60000)]})
        assert lab.connect("198.51.100.10", 80) == "connected"
        with lab.capture() as capture:
            packets.send_frame(lab, "eth0", frame)
            packets.send_frame(lab, "eth0", frame, bypass=True)
            assert not capture.packets(0.1, payload=b"smuggled")
    assert not firewall.lock()
    before = firewall.unstamped()
    lab.sandbox.ip("link", "add", "late7", "type", "veth", "peer", "name", "late8")
    for name in ("late7", "late8"):
        lab.sandbox.ip("link", "set", name, "up")
    packets.send_frame(lab, "late7", frame)
    assert firewall.unstamped() > before
    firewall.restamp()
    assert lab.connect("198.51.100.10", 80) == "connected"
    assert firewall.intact()
