"""The watched network as it has to be, the gate's rules, and the daemon's address."""

from __future__ import annotations

from typing import Any

import pytest

from egress.docker.api import socket_path
from egress.docker.gate import intact, rules, table_of
from egress.docker.network import Wanted, asks_from_host, fault

WANTED = Wanted("sallyport", "sallyport0")
GOOD = {
    "Driver": "bridge",
    "Options": {"com.docker.network.bridge.name": "sallyport0", "com.docker.network.bridge.enable_icc": "false"},
}


def test_a_network_made_by_us_will_do() -> None:
    assert fault(GOOD, WANTED) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Driver": "overlay"}, "its driver is overlay"),
        ({"Options": {}}, "its bridge is not named"),
        ({"Options": None}, "its bridge is not named"),
        ({"Options": {"com.docker.network.bridge.name": "br9"}}, "its bridge is br9, not sallyport0"),
        ({"Options": {"com.docker.network.bridge.name": "sallyport0"}}, "can reach each other"),
    ],
)
def test_another_will_not(changes: dict[str, Any], words: str) -> None:
    assert words in fault(GOOD | changes, WANTED)


@pytest.mark.parametrize(
    ("text", "systemd", "server"),
    [
        ("nameserver 192.0.2.53\n", "", ""),
        ("", "", ""),
        ("nameserver 127.0.0.1\n", "", "127.0.0.1"),
        ("nameserver 192.0.2.53\nnameserver ::1\n", "", "::1"),
        # systemd's stub alone: Docker takes the list behind it.
        ("nameserver 127.0.0.53\n", "nameserver 192.0.2.53\n", ""),
        ("nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n", "127.0.0.1"),
        ("nameserver 127.0.0.53\nnameserver 192.0.2.53\n", "nameserver 192.0.2.53\n", "127.0.0.53"),
        ("# nameserver 127.0.0.1\nsearch example.com\n", "", ""),
    ],
)
def test_a_resolver_on_the_hosts_loopback_is_found(text: str, systemd: str, server: str) -> None:
    assert asks_from_host("20.10.24+dfsg1", text, systemd) == server


@pytest.mark.parametrize("version", ["25.0.3", "28.2.2", "", "dev"])
def test_later_versions_ask_all_of_them_from_the_host(version: str) -> None:
    assert asks_from_host(version, "nameserver 192.0.2.53\n", "") == "the host's resolvers"


def test_the_gates_text_is_recognised_and_nothing_else() -> None:
    text = rules("sallyport0", (4, 17))
    assert "elements = { 4, 17 }" in text
    assert intact("sallyport0", text)
    assert not intact("other0", text)
    assert not intact("sallyport0", text.replace("\t\tdrop\n", "\t\taccept\n"))
    assert not intact("sallyport0", text.replace("\t\tdrop\n", ""))
    assert not intact("sallyport0", "")
    assert table_of("br-0a.1") == "sallyport_br_0a_1"


def test_the_daemon_has_to_be_on_this_machine() -> None:
    assert socket_path("unix:///run/docker.sock") == "/run/docker.sock"
    for host in ("tcp://192.0.2.1:2375", "ssh://me@example.com", "unix://relative", "docker.sock", ""):
        with pytest.raises(ValueError, match=r"write unix:///var/run/docker\.sock"):
            socket_path(host)
