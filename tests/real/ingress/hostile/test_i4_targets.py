"""I4: a route must not lead to the gateway itself, to loopback, to link-local or to a metadata service."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.corpus import get
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.conftest import OriginFactory

FORBIDDEN = {
    "loopback": "127.0.0.1",
    "loopback-far": "127.255.255.254",
    "loopback-6": "::1",
    "loopback-mapped": "::ffff:127.0.0.1",
    "loopback-mapped-hex": "::ffff:7f00:1",
    "loopback-nat64": "64:ff9b::7f00:1",
    "loopback-6to4": "2002:7f00:1::",
    "loopback-name": "localhost",
    "unspecified": "0.0.0.0",
    "unspecified-6": "::",
    "this-network": "0.1.2.3",
    "metadata": "169.254.169.254",
    "metadata-mapped": "::ffff:169.254.169.254",
    "metadata-6": "fd00:ec2::254",
    "metadata-other": "100.100.100.200",
    "link-local": "169.254.1.1",
    "link-local-6": "fe80::1",
    "multicast": "224.0.0.1",
    "multicast-6": "ff02::1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
}
NUMBERS = ["2130706433", "0x7f.1", "0x7f000001", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.1."]
"""What some resolvers take for 127.0.0.1."""
JUNK = [
    "127.0.0.1:80",
    "http://127.0.0.1",
    "a b",
    "user@127.0.0.1",
    "[::1]",
    "fe80::1%lo",
    "",
    "x" * 300,
    "127.0.0.1/8",
]


def ask(gate: Gateway, box: str, port: int) -> tuple[int, str | None]:
    answer = gate.ask(get().replace(b"box-PORT", b"%s-%d" % (box.encode(), port)))
    return answer.status, answer.one("sallyport-error")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """As it comes, without `--allow-target` (an empty flag takes the fixture's own away)."""
    hosts = {name: {"host": host} for name, host in FORBIDDEN.items()}
    with Gateway(tmp_path_factory.mktemp("closed"), "--allow-target", "192.0.2.0/24", sandboxes=hosts) as made:
        yield made


@pytest.mark.parametrize("name", FORBIDDEN)
def test_i4_an_address_of_a_forbidden_class(name: str, closed: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(host="::" if FORBIDDEN[name] == "::1" else "0.0.0.0")
    assert ask(closed, name, origin.port) == (502, "forbidden_target")
    assert origin.links == []


OPENED = ["127.0.0.1", "127.9.8.7", "::ffff:127.0.0.1", "localhost", "0.0.0.0"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Loopback is allowed, and so is 0.0.0.0; the gateway listens on every address."""
    sandboxes = {f"box{number}": {"host": host} for number, host in enumerate([*OPENED, *own_address()])}
    flags = ["--host", "0.0.0.0", "--allow-target", "127.0.0.0/8,0.0.0.0/32"]
    with Gateway(tmp_path_factory.mktemp("opened"), *flags, sandboxes=sandboxes) as made:
        yield made


def own_address() -> list[str]:
    """This machine's address toward others, where it has one; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [sock.getsockname()[0]]


@pytest.mark.parametrize("number", range(4), ids=OPENED[:4])
def test_i4_what_the_operator_opens_is_open(number: int, opened: Gateway, start_origin: OriginFactory) -> None:
    """The control: the same target, opened on purpose, is reached."""
    assert ask(opened, f"box{number}", start_origin(host="0.0.0.0").port) == (200, None)


@pytest.mark.parametrize("number", range(len(OPENED) + len(own_address())))
def test_i4_the_gateway_itself_is_never_a_target(number: int, opened: Gateway) -> None:
    """Not even where loopback is open: a route to itself would go round for ever, or reach the admin port."""
    assert ask(opened, f"box{number}", opened.port) == (502, "forbidden_target")
    assert ask(opened, f"box{number}", opened.program.admin_port) == (502, "forbidden_target")


def test_i4_an_address_in_disguise_is_no_host(
    tmp_path_factory: pytest.TempPathFactory, start_origin: OriginFactory
) -> None:
    """A file that has one is not taken: what was known goes on, and the entry leads nowhere."""
    origin = start_origin(host="0.0.0.0")
    plain = {"box": {"host": "127.0.0.1"}}
    with Gateway(tmp_path_factory.mktemp("junk"), sandboxes=plain) as gate:
        for host in NUMBERS + JUNK:
            gate.route(plain)
            assert soon(lambda: b"degraded" not in gate.program.admin("/readyz").body)
            gate.route(plain | {"junk": {"host": host}})
            if host != "127.0.0.1.":  # a trailing dot may also be taken for a name, which then has no address
                assert soon(lambda: b"degraded" in gate.program.admin("/readyz").body), host
            assert ask(gate, "junk", origin.port)[0] in (404, 502)
            assert origin.links == []
        assert ask(gate, "box", origin.port) == (200, None)


def test_i4_a_port_that_is_not_listed(tmp_path_factory: pytest.TempPathFactory, start_origin: OriginFactory) -> None:
    origin, other = start_origin(), start_origin()
    boxes = {"box": {"host": "127.0.0.1", "ports": [origin.port]}}
    with Gateway(tmp_path_factory.mktemp("ports"), sandboxes=boxes) as gate:
        assert ask(gate, "box", origin.port) == (200, None)
        assert ask(gate, "box", other.port)[0] in (403, 404)
    assert other.links == []
