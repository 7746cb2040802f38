"""What is asked in which order, and what each way in is answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ingress.admission.access import KeyRing
from ingress.routes import Ambiguous, Sandbox
from tests.pure.ingress.gate.asking import CLIENT, KEYS, NOW, House, ask, signed

if TYPE_CHECKING:
    from ingress.admission.verdict import Admission

TOKEN = "OpenSandbox-Secure-Access: the token"


def shape(found: Admission) -> tuple[str, int, bytes, bytes, str]:
    return found.sandbox.id, found.port, found.target, found.prefix, found.request_uri


def test_each_way_in(house: House) -> None:
    by_header = house.admit(ask("/x?y", "OpenSandbox-Ingress-To: box-8080"))
    assert shape(by_header) == ("box", 8080, b"/x?y", b"", "")
    assert shape(house.admit(ask("/x?y", host="box-8080.example.com"))) == ("box", 8080, b"/x?y", b"", "")
    by_path = house.admit(ask("/box/8080//x?y"))
    assert shape(by_path) == ("box", 8080, b"//x?y", b"/box/8080", "//x")
    assert shape(house.admit(ask("/box/8080?y"))) == ("box", 8080, b"/?y", b"/box/8080", "/")


def test_signed_each_way_in(house: House) -> None:
    route = signed()
    by_header = house.admit(ask("/x", f"OpenSandbox-Ingress-To: {route.token}"))
    assert shape(by_header) == ("safe", 8080, b"/x", b"", "")
    assert shape(house.admit(ask("/x", host=f"{route.token}.example.com"))) == ("safe", 8080, b"/x", b"", "")
    assert shape(house.admit(ask(route.path + "/x?q"))) == ("safe", 8080, b"/x?q", route.path.encode(), "/x")
    assert shape(house.admit(ask(route.path))) == ("safe", 8080, b"/", route.path.encode(), "/")


def test_the_header_wins_over_the_host_and_the_host_over_the_path(house: House) -> None:
    house.routes.put(Sandbox("one", "10.0.0.4"))
    house.routes.put(Sandbox("two", "10.0.0.5"))
    everything = ask("/box/1/", "OpenSandbox-Ingress-To: one-2", host="two-3.example.com")
    assert shape(house.admit(everything)) == ("one", 2, b"/box/1/", b"", "")
    assert shape(house.admit(ask("/box/1/", host="two-3.example.com"))) == ("two", 3, b"/box/1/", b"", "")


@pytest.mark.parametrize(
    ("mode", "served"),
    [(("header", "host"), (True, True, False)), (("host",), (False, True, False)), (("uri",), (False, False, True))],
)
def test_only_what_the_mode_says_is_a_way_in(mode: tuple[str, ...], served: tuple[bool, ...]) -> None:
    house = House(frozenset(mode))
    ways = [
        ask("/x", "OpenSandbox-Ingress-To: box-80"),
        ask("/x", host="box-80.example.com"),
        ask("/box/80/x"),
    ]
    assert tuple(house.status(way) == 0 for way in ways) == served
    house.throttle.close()


ORDER = [
    (("OpenSandbox-Ingress-To: box",), 400, "bad_route"),
    (("OpenSandbox-Ingress-To: nobody-80",), 404, "unknown_sandbox"),
    (("OpenSandbox-Ingress-To: late-80",), 503, "not_ready"),
    (("OpenSandbox-Ingress-To: late-80", "OpenSandbox-Secure-Access: wrong"), 503, "not_ready"),
    (("OpenSandbox-Ingress-To: narrow-81",), 404, "unknown_port"),
    (("OpenSandbox-Ingress-To: narrow-80",), 401, "access_denied"),
    (("OpenSandbox-Ingress-To: twins-80",), 502, "ambiguous_sandbox"),
    ((), 400, "bad_route"),
]


@pytest.mark.parametrize(("lines", "status", "code"), ORDER)
def test_the_order_of_the_questions(house: House, lines: tuple[str, ...], status: int, code: str) -> None:
    house.routes.put(Sandbox("narrow", "10.0.0.4", token="t", ports=frozenset((80, 8080))))
    house.routes.put(Ambiguous("twins", ("ns1", "ns2")))
    refusal = house.refused(ask("/", *lines))
    assert (refusal.status, refusal.code) == (status, code)


def test_refusals_tell_people_what_to_do(house: House) -> None:
    house.routes.put(Sandbox("narrow", "10.0.0.4", ports=frozenset((80, 8080))))
    house.routes.put(Ambiguous("twins", ("ns1", "ns2")))
    assert "OpenSandbox-Ingress-To: <sandbox>-<port>" in house.refused(ask("/")).message
    assert "/<sandbox>/<port>/" in house.refused(ask("/")).message
    assert "it is starting" in house.refused(ask("/late/80/")).message
    assert "80, 8080" in house.refused(ask("/narrow/81/")).message
    assert "ns1, ns2" in house.refused(ask("/twins/81/")).message
    assert house.refused(ask("/late/80/")).retry_after == 1


# -- access: the matrix of the existing gateway ----------------------------------------------------------------------

WRONG = "OpenSandbox-Secure-Access: wrong"
EMPTY = "OpenSandbox-Secure-Access:"


@pytest.mark.parametrize("way", ["header", "host", "uri"])
@pytest.mark.parametrize(
    ("signature", "lines", "status"),
    [
        ("none", (), 401),
        ("none", (TOKEN,), 0),
        ("none", ("OpenSandbox-Secure-Access:   the token\t",), 0),
        ("none", (WRONG,), 401),
        ("none", (EMPTY,), 401),
        ("none", (TOKEN, TOKEN), 401),
        ("none", (TOKEN, WRONG), 401),
        ("right", (), 0),
        ("right", (WRONG,), 401),
        ("right", (EMPTY,), 401),
        ("right", (TOKEN,), 0),
        ("wrong", (), 401),
        ("wrong", (TOKEN,), 0),
        ("expired", (), 401),
        ("expired", (TOKEN,), 0),
        ("other key", (), 401),
    ],
)
def test_access(house: House, way: str, signature: str, lines: tuple[str, ...], status: int) -> None:
    route = {
        "none": None,
        "right": signed(),
        "wrong": signed()._replace(signature="00000000a"),
        "expired": signed(until=NOW - 1),
        "other key": signed()._replace(signature=signed().signature[:8] + "c"),
    }[signature]
    token = "safe-8080" if route is None else route.token
    path = "/safe/8080" if route is None else route.path
    head = {
        "header": ask("/in/side", f"OpenSandbox-Ingress-To: {token}", *lines),
        "host": ask("/in/side", *lines, host=f"{token}.example.com"),
        "uri": ask(f"{path}/in/side", *lines),
    }[way]
    assert house.status(head) == status
    if not status:
        assert house.admit(head).target == b"/in/side", "a signature that isn't looked at is cut off all the same"


def test_one_401_for_every_cause(house: House) -> None:
    causes = [
        ask("/safe/8080/"),
        ask("/safe/8080/", WRONG),
        ask("/safe/8080/", TOKEN, TOKEN),
        ask(signed()._replace(signature="00000000a").path),
        ask(signed(until=NOW - 1).path),
        ask("/safe/8080/tkuhsg/NOTASIGNATURE/"),
        ask("/safe/8080/", "Cookie: sallyport-access=v1.tkuhsg.a." + "0" * 64),
        ask("/safe/8080/.sallyport/enter?e=zzzzzz&s=00000000a"),
    ]
    assert len({house.refused(head).render(accept=b"") for head in causes}) == 1
    body = json.loads(house.refused(causes[0]).render().partition(b"\r\n\r\n")[2])
    assert body["error"]["code"] == "access_denied"
    assert b"WWW-Authenticate:" in house.refused(causes[0]).render()


def test_a_malformed_signature_is_400_by_header_and_host_and_401_by_path(house: House) -> None:
    for bad in ("0a1b2c3", "0a1b2c3d", "XYZ", "0A1B2C3D1"):
        assert house.refused(ask("/", f"OpenSandbox-Ingress-To: safe-80-tkuhsg-{bad}")).status == 400
        assert house.refused(ask("/safe/80/tkuhsg/" + bad)).status == 401
    only_hosts = House(frozenset(("host",)))
    for bad in ("0a1b2c3", "0a1b2c3d", "xyz", "0a1b2c3g1"):
        assert only_hosts.refused(ask("/", host=f"safe-80-tkuhsg-{bad}.example.com")).status == 400
    only_hosts.throttle.close()


def test_an_open_sandbox_looks_at_no_signature(house: House) -> None:
    assert house.admit(ask("/x", "OpenSandbox-Ingress-To: box-80-tkuhsg-00000000a")).target == b"/x"
    in_path = house.admit(ask("/box/80/tkuhsg/00000000a/x", WRONG))
    assert (in_path.target, in_path.prefix) == (b"/tkuhsg/00000000a/x", b"/box/80")


def test_a_blank_token_means_open_and_blanks_around_one_do_not_count(house: House) -> None:
    house.routes.put(Sandbox("blank", "10.0.0.4", token=" \n"))
    house.routes.put(Sandbox("wide", "10.0.0.4", token=" the token\n"))
    assert house.status(ask("/blank/80/")) == 0
    assert house.status(ask("/wide/80/")) == 401
    assert house.status(ask("/wide/80/", TOKEN)) == 0


def test_without_keys_a_signature_is_503_and_the_token_works(house: House) -> None:
    house.gate.keys = KeyRing()
    refusal = house.refused(ask(signed().path))
    assert (refusal.status, refusal.code) == (503, "access_not_configured")
    assert house.status(ask("/safe/8080/")) == 401
    assert house.status(ask("/safe/8080/", TOKEN)) == 0


def test_keys_change_at_once_also_for_connections_that_are_known(house: House) -> None:
    head = ask(signed().path)
    assert house.status(head) == 0
    house.gate.keys = KeyRing({"a": b"quite another", "b": b"x"})
    assert house.status(head) == 401
    house.gate.keys = KEYS
    assert house.status(head) == 0


def test_a_signature_ends_with_its_second_also_for_connections_that_are_known(house: House) -> None:
    head = ask(signed(until=NOW + 5).path)
    assert house.status(head) == 0
    house.now = NOW + 5.9
    assert house.status(head) == 0
    house.now = NOW + 6
    assert house.status(head) == 401


def test_a_token_that_changes_ends_the_old_one_at_once(house: House) -> None:
    head = ask("/safe/8080/", TOKEN)
    assert house.status(head) == 0
    house.routes.put(Sandbox("safe", "10.0.0.2", token="a new one"))
    assert house.status(head) == 401


def test_a_sandbox_that_goes_or_moves_is_seen_at_once(house: House) -> None:
    head = ask("/x", "OpenSandbox-Ingress-To: box-80")
    assert house.admit(head).sandbox.host == "10.0.0.1"
    house.routes.put(Sandbox("box", "10.0.0.9"))
    assert house.admit(head).sandbox.host == "10.0.0.9"
    house.routes.drop("box")
    assert house.status(head) == 404


# -- the rest of an admission ---------------------------------------------------------------------------------------


def test_the_renewal_is_suppressed_on_request(house: House) -> None:
    to = "OpenSandbox-Ingress-To: box-80"
    assert house.admit(ask("/", to)).renew
    assert not house.admit(ask("/", to, "OpenSandbox-Access-Renew: skip")).renew
    assert not house.admit(ask("/", to, "OpenSandbox-Access-Renew: SKIP")).renew
    assert house.admit(ask("/", to, "OpenSandbox-Access-Renew: yes")).renew


def test_the_host_that_an_application_is_shown(house: House) -> None:
    house.routes.put(Sandbox("vite", "10.0.0.4", upstream_host="localhost:5173"))
    assert house.admit(ask("/vite/80/")).authority == b"localhost:5173"
    assert house.admit(ask("/box/80/")).authority == b""
    assert house.admit(ask("http://gw.example/box/80/", host=None, version=10)).authority == b"gw.example"


def test_absolute_form_and_options(house: House) -> None:
    assert house.admit(ask("http://box-80.example.com/x", host="box-80.example.com")).target == b"/x"
    assert house.admit(ask("http://gw.example.com/box/80//x", host="GW.example.com:80")).target == b"//x"
    assert house.refused(ask("http://other.example/x", host="box-80.example.com")).status == 400
    assert house.admit(ask("*", host="box-80.example.com", method="OPTIONS")).target == b"*"
    assert house.refused(ask("*", host="box-80.example.com")).status == 400
    assert house.refused(ask("*", method="OPTIONS")).status == 400


def test_a_known_connection_gets_no_star_for_another_method(house: House) -> None:
    head = ask("*", host="box-80.example.com", method="OPTIONS")
    assert house.admit(head).target == b"*"
    head.method = b"GET"
    assert house.refused(head).status == 400


# -- /status.ok -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["gw.example.com", "127.0.0.1:28888", "[::1]:28888", "", None])
def test_status_ok_where_no_route_claims_it(house: House, host: str | None) -> None:
    reply = house.reply(ask("/status.ok", host=host))
    assert (reply.status, reply.body) == (200, b"OK")
    assert house.reply(ask("/status.ok?x", host=host)).status == 200
    assert house.reply(ask("/status.ok", host=host, method="HEAD")).status == 200


def test_status_ok_of_a_sandbox(house: House) -> None:
    assert house.admit(ask("/status.ok", "OpenSandbox-Ingress-To: box-80")).target == b"/status.ok"
    assert house.admit(ask("/status.ok", host="box-80.example.com")).target == b"/status.ok"
    assert house.admit(ask("/box/80/status.ok")).target == b"/status.ok"
    assert house.refused(ask("/status.ok", "OpenSandbox-Ingress-To: nobody-80")).status == 404
    assert house.refused(ask("/status.ok", method="POST")).status == 400
    assert house.refused(ask("/status.ok/")).status == 400


def test_status_ok_on_the_admin_port_only() -> None:
    house = House(status_ok=False)
    assert house.refused(ask("/status.ok")).status == 400
    house.throttle.close()


def test_v6_clients_of_one_network_share_their_counters(house: House) -> None:
    for number in range(20):
        house.refused(ask("/safe/80/", WRONG), f"2001:db8::{number:x}")
    assert house.refused(ask("/safe/80/", TOKEN), "2001:db8::ffff").status == 429
    assert house.status(ask("/safe/80/", TOKEN), CLIENT) == 0
