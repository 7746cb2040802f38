"""Threat E15 with the name guard on: an allowed and a denied name on one address, and whatever hides a name.

Beside each attempt stands the same one in a sandbox with the guard off: there it passes.
"""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING

import pytest

from lab import CONTAINER_ROOT, CONTAINER_ROOT_WITHOUT_RAW, NOBODY, Identity
from lab.tls import TlsSites
from tests.blackbox.hidden import EVIL, KINDS, ech, hidden
from tests.blackbox.place import ALLOW_ALL, Place, allow, soon
from tests.blackbox.speaker import speak, words
from tests.blackbox.test_contract_dns import Hook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet

ATTACKERS = pytest.mark.parametrize(
    "attacker", [NOBODY, CONTAINER_ROOT_WITHOUT_RAW, CONTAINER_ROOT], ids=["nobody", "root", "raw"]
)
FAMILIES = pytest.mark.parametrize("family", [4, 6])
AT_ONCE = 6.0  # seconds in which a refusal has to come, patience with the silent included; who waits gives up after 8


@pytest.fixture(scope="module")
def tls(internet: Internet) -> Iterator[TlsSites]:
    with TlsSites(internet.namespace) as sites:
        yield sites


@pytest.fixture(scope="module")
def guarded(internet: Internet) -> Iterator[Place]:
    with Place(internet, env={"SNI": "enforce"}) as made:
        yield made


@pytest.fixture(scope="module")
def unguarded(internet: Internet) -> Iterator[Place]:
    """The control: the same sidecar with the guard off."""
    with Place(internet) as made:
        yield made


def shared(tls: TlsSites, family: int, *names: str, places: tuple[Place, ...], asks_again: bool = False) -> str:
    """An address that these names share, allowed and looked up in each place; with TLS on 443."""
    address = places[0].host(family)
    tls.add(address, asks_again=asks_again)
    for place in places:
        place.allow(*names)
        for name in names:
            place.teach(address, name=name)
    return address


def denials(place: Place, address: str, port: int) -> dict[str, str]:
    """Name ("" for none) to reason, of the refused connections there."""
    return {
        event.get("target.host", ""): event["reason"]
        for event in place.sidecar.events("egress.outbound")
        if event.get("target.ips") == [address] and event.get("target.port") == port and "reason" in event
    }


def counted(place: Place) -> int:
    text = place.sidecar.api("GET", "/metrics", token=None).text
    found = re.search(r"^egress_sni_denied_total (\d+)$", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


# -- names -------------------------------------------------------------------------------------------------------------
@FAMILIES
@ATTACKERS
def test_e15_only_the_allowed_name_passes_on_a_shared_address(
    tls: TlsSites, guarded: Place, unguarded: Place, attacker: Identity, family: int
) -> None:
    name, denied = guarded.name(), guarded.name("example.net")
    address = shared(tls, family, name, places=(guarded, unguarded))
    tries = [("tls", address, name), ("tls", address, denied), ("http", address, name), ("http", address, denied)]
    assert words(unguarded.lab, tries, attacker) == [name, denied, name, denied], "the control"
    before = counted(guarded)
    with guarded.lab.capture() as wire:
        heard = speak(guarded.lab, tries, attacker)
        assert not wire.packets(0.1, payload=denied.encode()), "nothing of it leaves"
    assert [one.word for one in heard] == [name, "reset", name, "reset"]
    assert all(one.seconds < AT_ONCE for one in heard)
    assert soon(lambda: denials(guarded, address, 443) == {denied: "default deny"}), guarded.sidecar.log
    assert soon(lambda: denials(guarded, address, 80) == {denied: "default deny"}), guarded.sidecar.log
    assert soon(lambda: counted(guarded) >= before + 2)


@FAMILIES
def test_e15_before_the_verdict_the_server_hears_nothing(guarded: Place, family: int) -> None:
    """Of a request that never becomes whole; beside it one for the same name that does."""
    name = guarded.name()
    address = guarded.host(family)
    guarded.allow(name)
    guarded.teach(address, name=name)
    with guarded.lab.capture() as wire:
        silent = guarded.lab.open(address, 80, timeout=10)
        silent.sendall(b"GET / HTTP/1.1\r\nHost: " + name.encode() + b"\r\nX-Secret: half a request\r\n")
        assert outcome(silent) == b""
        assert not wire.packets(0.1, payload=b"half a request")
        assert words(guarded.lab, [("http", address, name)]) == [name]
        assert wire.arrived(payload=name.encode())


def outcome(sock: socket.socket) -> bytes:
    """All that comes until the end, whichever it is."""
    heard = b""
    try:
        while data := sock.recv(65536):
            heard += data
    except ConnectionResetError:
        pass
    return heard


def test_e15_a_denied_name_is_told_to_the_webhook(internet: Internet, tls: TlsSites) -> None:
    """By the name that the client said, or by the address where it said none; what passes is not told."""
    name, denied = Place.name(), Place.name("example.net")
    with Place(internet, env={"SNI": "enforce", "DENY_WEBHOOK": "http://198.51.100.70:9191/"}) as place:
        hook = Hook(place.lab, "198.51.100.70")
        try:
            address = shared(tls, 4, name, places=(place,))
            tries = [("tls", address, name), ("tls", address, denied), ("http", address, name)]
            assert words(place.lab, tries) == [name, "reset", name]
            with place.lab.open(address, 443, timeout=10) as sock:
                sock.sendall(b"SSH-2.0-x\r\n")
                assert outcome(sock) == b""
            assert soon(lambda: len(hook.heard) >= 2), place.sidecar.log
            told = [json.loads(body) for _, _, body in hook.heard]
            assert sorted(one["hostname"] for one in told) == sorted([denied, address])
            assert {one["source"] for one in told} == {"opensandbox-egress"}
        finally:
            hook.close()


@FAMILIES
def test_e15_two_allowed_names_share_an_address(tls: TlsSites, guarded: Place, family: int) -> None:
    one, other = guarded.name(), guarded.name()
    address = shared(tls, family, one, other, places=(guarded,))
    tries = [(kind, address, name) for kind in ("tls", "http") for name in (one, other, one.upper())]
    heard = words(guarded.lab, tries)
    assert [word.lower() for word in heard] == [one, other, one] * 2


def test_e15_an_allowed_name_passes_only_where_its_answers_led(tls: TlsSites, guarded: Place, unguarded: Place) -> None:
    """A wildcard allows it, but DNS never said that it is there: a stranger on a shared address may claim any name."""
    name, other = guarded.name("w.example.com"), guarded.name("w.example.com")
    address, elsewhere = guarded.host(), guarded.host()
    tls.add(address, elsewhere)
    for place in (guarded, unguarded):
        place.allow("*.w.example.com")
        place.teach(address, name=name)
        place.teach(elsewhere, name=other)
    tries = [("tls", address, name), ("tls", address, other), ("tls", elsewhere, other)]
    assert words(unguarded.lab, tries) == [name, other, other]
    assert words(guarded.lab, tries) == [name, "reset", other]
    assert soon(lambda: denials(guarded, address, 443) == {other: "this address was not answered for the name"})


def test_e15_a_name_is_allowed_by_port(tls: TlsSites, guarded: Place) -> None:
    web, plain = guarded.name(), guarded.name()
    address = guarded.host()
    tls.add(address)
    guarded.policy({"defaultAction": "deny", "egress": [
        {"action": "allow", "target": web, "ports": [443]}, {"action": "allow", "target": plain, "ports": [80]},
    ]})  # fmt: skip
    for name in (web, plain):
        guarded.teach(address, name=name)
    tries = [(kind, address, name) for kind in ("tls", "http") for name in (web, plain)]
    assert words(guarded.lab, tries) == [web, "reset", "reset", plain]


def test_e15_a_denied_name_under_default_allow(tls: TlsSites, guarded: Place, unguarded: Place) -> None:
    name, denied = guarded.name(), guarded.name("example.net")
    address = guarded.host()
    tls.add(address)
    policy = {"defaultAction": "allow", "egress": [{"action": "deny", "target": denied}]}
    for place in (guarded, unguarded):
        place.policy(policy)
        place.teach(address, name=name)
    tries = [("tls", address, name), ("tls", address, denied), ("http", address, denied)]
    assert words(unguarded.lab, tries) == [name, denied, denied]
    assert words(guarded.lab, tries) == [name, "reset", "reset"]


def test_e15_other_ports_of_a_learned_address_are_what_they_were(guarded: Place) -> None:
    address = guarded.host()
    name = guarded.name()
    guarded.policy({"defaultAction": "deny", "egress": [{"action": "allow", "target": name, "ports": [5000, 80]}]})
    guarded.teach(address, name=name)
    assert guarded.attempt([("tcp", address, 5000), ("udp", address, 5000), ("tcp", address, 443),
                            ("tcp", address, 8000)]) == ["connected", "connected", "refused", "refused"]  # fmt: skip


@FAMILIES
def test_e15_an_address_that_a_rule_opens_needs_no_name(tls: TlsSites, guarded: Place, family: int) -> None:
    """Rules for addresses stand above names, for whoever speaks there, and a denied address stays refused."""
    address, closed, name = guarded.host(family), guarded.host(family), guarded.name()
    tls.add(address)
    guarded.policy({"defaultAction": "deny", "egress": [
        {"action": "deny", "target": closed}, {"action": "allow", "target": address},
        {"action": "allow", "target": name},
    ]})  # fmt: skip
    guarded.teach(address, closed, name=name)
    tries = [("tls", address, "whoever.example.net"), ("http", address, "whoever.example.net"), ("udp", address, 443),
             ("tls", closed, name)]  # fmt: skip
    assert words(guarded.lab, tries) == ["whoever.example.net", "whoever.example.net", "answered", "refused"]


@FAMILIES
def test_e15_quic_is_refused(guarded: Place, unguarded: Place, family: int) -> None:
    name, address = guarded.name(), guarded.host(family)
    for place in (guarded, unguarded):
        place.allow(name)
        place.teach(address, name=name)
    assert words(unguarded.lab, [("udp", address, 443)]) == ["answered"]
    heard = words(guarded.lab, [("udp", address, 443), ("udp", address, 5000)])
    assert heard[0] in ("No route to host", "Permission denied", "Operation not permitted", "refused")
    assert heard[1] == "answered", "the same address, on a port that nothing looks at"


# -- what hides a name -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_e15_whatever_hides_its_name_is_refused_and_told(guarded: Place, unguarded: Place, kind: str) -> None:
    name, address = guarded.name(), guarded.host()
    port, said, reason = hidden(name.encode())[kind]
    for place in (guarded, unguarded):
        place.allow(name)
        place.teach(address, name=name)
    with unguarded.lab.capture() as wire:
        sock = unguarded.lab.open(address, port)
        sock.sendall(said)
        assert not said or wire.arrived(payload=said[:40]), "the control: it leaves"
        sock.close()
    with guarded.lab.capture() as wire:
        (heard,) = speak(guarded.lab, [("say", address, port, said.hex())], NOBODY)
        assert not said or not wire.packets(0.05, payload=said[:40])
    assert heard.word == "reset"
    assert heard.seconds < AT_ONCE
    assert soon(lambda: any(told.startswith(reason) for told in denials(guarded, address, port).values()))


def test_e15_what_browsers_send_for_ech_passes_where_the_operator_says_so(internet: Internet, tls: TlsSites) -> None:
    with Place(internet, policy=allow("*.example.com"), env={"SNI": "enforce", "SNI_ECH": "pass"}) as place:
        name, address = place.name(), place.host()
        tls.add(address)
        place.teach(address, name=name)
        heard = words(place.lab, [("say", address, 443, ech(one).hex()) for one in (name.encode(), EVIL)])
        assert heard[0][:2] == "16", "a ServerHello"
        assert heard[1] == "reset"


@FAMILIES
@pytest.mark.parametrize(("record_size", "segment"), [(1, 4000), (16, 3), (100, 7), (4000, 1), (50, 50)])
def test_e15_a_hello_in_many_records_and_segments_is_put_together(
    tls: TlsSites, guarded: Place, family: int, record_size: int, segment: int
) -> None:
    name, denied = guarded.name(), guarded.name("example.net")
    address = shared(tls, family, name, places=(guarded,))
    tries = [("in_pieces", address, wanted, record_size, segment) for wanted in (name, denied)]
    assert words(guarded.lab, tries) == [name, "reset"]


@FAMILIES
def test_e15_another_name_in_a_second_hello(tls: TlsSites, guarded: Place, unguarded: Place, family: int) -> None:
    """The server asks for another key share, and the second ClientHello goes on the wire in the clear as well."""
    name = guarded.name()
    denied = "x" + name[1:]
    address = shared(tls, family, name, places=(guarded, unguarded), asks_again=True)
    tries = [("tls", address, name), ("again", address, name, denied)]
    with unguarded.lab.capture() as wire:
        assert words(unguarded.lab, tries)[0] == name
        assert wire.arrived(payload=denied.encode()), "the control: it leaves"
    with guarded.lab.capture() as wire:
        assert words(guarded.lab, tries) == [name, "reset"]
        assert not wire.packets(0.1, payload=denied.encode())
    reason = "another server name (SNI) in the second ClientHello"
    assert soon(lambda: denials(guarded, address, 443).get(name) == reason), guarded.sidecar.log


# -- HTTP, request by request ------------------------------------------------------------------------------------------
@FAMILIES
@pytest.mark.parametrize("pipelined", [False, True])
def test_e15_a_later_request_for_a_denied_name(guarded: Place, unguarded: Place, family: int, pipelined: bool) -> None:
    name, address = guarded.name(), guarded.host(family)
    for place in (guarded, unguarded):
        place.allow(name)
        place.teach(address, name=name)

    def ask(place: Place) -> list[str]:
        """The Hosts that the server has seen, and how it ended."""
        requests = [f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() for host in (name, name, "evil.example.net")]
        sock, seen = place.lab.open(address, 80), b""
        try:
            if pipelined:
                sock.sendall(b"".join(requests[:2]))
            for request in [b"", requests[2]] if pipelined else requests:
                sock.sendall(request)
                expected = seen.count(b"\nhost ") + (2 if not request else 1)
                while seen.count(b"\nhost ") < expected or not seen.endswith(b"path /\n"):
                    data = sock.recv(4096)
                    if not data:
                        break
                    seen += data
        except ConnectionResetError:
            seen += b"\nhost reset\n"
        return re.findall(r"\nhost (.*)\n", seen.decode())

    assert ask(unguarded) == [name, name, "evil.example.net"], "the control"
    assert ask(guarded) == [name, name, "reset"]
    reason = "another Host on the same connection"
    assert soon(lambda: denials(guarded, address, 80).get(name) == reason), guarded.sidecar.log


# -- around it ---------------------------------------------------------------------------------------------------------
@ATTACKERS
def test_e15_the_relay_is_no_way_to_anywhere(guarded: Place, attacker: Identity) -> None:
    """Its ports, found in any way, refuse who was not redirected to them; E4, E5: what it may, nobody else may."""
    name, address = guarded.name(), guarded.host()
    guarded.allow(name)
    guarded.teach(address, name=name)
    rules = guarded.lab.run(["nft", "list", "chain", "inet", "sallyport", "intercept"], check=True).stdout
    ports = {int(port) for port in re.findall(r"@learned\d_\d+ .*redirect to :(\d+)", rules)}
    assert len(ports) == 2, rules
    request = f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode().hex()
    tries = [("say", host, port, request) for port in ports for host in ("127.0.0.1", "::1")]
    assert set(words(guarded.lab, tries, attacker)) == {"refused"}
    assert words(guarded.lab, [("http", address, name)], attacker) == [name], "the control: redirected, it answers"


_MARKS = r"""
import json, socket, sys
address, seen = sys.argv[1], []
for number in range(2000):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, 36, number * 2 + 1)
    sock.setsockopt(socket.SOL_SOCKET, 12, number * 7 + 1)
    sock.settimeout(20)
    try:
        sock.connect((address, 80))
        sock.sendall(b"SSH-2.0-x\r\n")
        if not sock.recv(10): seen.append("closed")
    except ConnectionResetError:
        pass
    sock.close()
print(json.dumps(seen))
"""


def test_e15_marks_are_not_guessed(guarded: Place) -> None:
    """With CAP_NET_RAW marks and priorities can be set; none of them opens a way past the relay."""
    name, address = guarded.name(), guarded.host()
    guarded.allow(name)
    guarded.teach(address, name=name)
    with guarded.lab.capture() as wire:
        done = guarded.lab.python(_MARKS, address, identity=CONTAINER_ROOT, timeout=240)
        assert done.stdout == "[]\n", done.stdout + done.stderr
        assert not wire.packets(0.1, payload=b"SSH-2.0")


@pytest.mark.parametrize("port", [80, 443, 8443])
def test_e15_inbound_connections_are_untouched(guarded: Place, port: int) -> None:
    """Through the gateway come those who speak first, and who wait for us to: neither is asked for a name."""
    guarded.policy({"defaultAction": "deny", "egress": []})
    server = guarded.lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen()
    with server, guarded.lab.dial_in(port) as outside:
        inside, _ = server.accept()
        with inside:
            inside.sendall(b"server first")
            assert outside.recv(100) == b"server first"
            outside.sendall(b"then you")
            assert inside.recv(100) == b"then you"


def test_e15_what_is_not_asked_for_is_closed_as_ever(guarded: Place) -> None:
    """No name has led there: refused before the relay sees it, and at once."""
    name = guarded.name()
    guarded.allow(name)
    four, six = guarded.host(), guarded.host(6)
    tries = [("tls", four, name), ("tls", six, name), ("http", four, name), ("http", six, name)]
    assert words(guarded.lab, tries, NOBODY) == ["refused"] * 4
    guarded.policy(ALLOW_ALL)
    assert words(guarded.lab, [("http", four, name), ("http", six, name)]) == [name, name], "open: nobody taught them"
