"""The wire of Kubernetes agent-sandbox's router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingress.routes import Ambiguous, Sandbox
from tests.pure.ingress.gate.asking import House, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX = "X-Sandbox-ID: box"


@pytest.fixture
def router() -> Iterator[House]:
    made = House(frozenset(("agent-sandbox",)))
    made.routes.replace(
        [
            Sandbox("box", "box.default.svc.cluster.local", namespace="default", addresses=("10.1.0.5", "fd00::5")),
            Ambiguous(
                "twin",
                ("default", "team"),
                (Sandbox("twin", "10.1.0.6", namespace="default"), Sandbox("twin", "10.1.0.7", namespace="team")),
            ),
            Sandbox("late", "", ready=False, namespace="default"),
            Sandbox("named", "named.default.svc.cluster.local", namespace="default"),
            Sandbox("narrow", "10.1.0.8", namespace="default", ports=frozenset((8888,))),
            Sandbox("local", "127.0.0.9", namespace="default", addresses=("127.0.0.9",)),
        ]
    )
    yield made
    made.throttle.close()


def test_id_namespace_and_port(router: House) -> None:
    found = router.admit(ask("/a//b?c", BOX))
    assert (found.sandbox.id, found.port, found.target, found.prefix) == ("box", 8888, b"/a//b?c", b"")
    assert found.authority == b"box.default.svc.cluster.local:8888", "not the caller's Host"
    assert found.sandbox.host == "10.1.0.5", "the pod itself: no look-up"
    assert found.timeout == 180
    assert router.admit(
        ask("/", "X-Sandbox-ID: twin", "X-Sandbox-Namespace: team", "X-Sandbox-Port: 1")
    ).sandbox.host == ("10.1.0.7")
    assert router.admit(ask("/", "X-Sandbox-ID: twin")).sandbox.host == "10.1.0.6"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((), 400),
        (("X-Sandbox-ID:",), 400),
        (("X-Sandbox-ID: Box",), 400),
        (("X-Sandbox-ID: -box",), 400),
        (("X-Sandbox-ID: box.default",), 400),
        (("X-Sandbox-ID: " + "x" * 64,), 400),
        ((BOX, BOX), 400),
        ((BOX, "X-Sandbox-Namespace:"), 400),
        ((BOX, "X-Sandbox-Namespace: a.b"), 400),
        ((BOX, "X-Sandbox-Port: 0"), 400),
        ((BOX, "X-Sandbox-Port: 65536"), 400),
        ((BOX, "X-Sandbox-Port: 8_0"), 400),
        ((BOX, "X-Sandbox-Port: x"), 400),
        ((BOX, "X-Sandbox-Pod-IP: x"), 400),
        ((BOX, "X-Sandbox-Pod-IP: 10.1.0.5", "X-Sandbox-Pod-IP: 10.1.0.5"), 400),
        ((BOX, "X-Sandbox-Namespace: team"), 502),
        (("X-Sandbox-ID: nobody",), 502),
        (("X-Sandbox-ID: narrow", "X-Sandbox-Port: 22"), 400),
        (("X-Sandbox-ID: late",), 503),
    ],
)
def test_what_is_refused(router: House, lines: tuple[str, ...], status: int) -> None:
    assert router.refused(ask("/", *lines)).status == status
    assert router.status(ask("/", BOX)) == 0, "the control"


def test_a_refusal_says_which_and_why(router: House) -> None:
    unknown = router.refused(ask("/", "X-Sandbox-ID: nobody", "X-Sandbox-Namespace: team"))
    assert (unknown.code, unknown.sandbox) == ("unknown_sandbox", "nobody"), "502 on this wire: a 404 is a file's"
    assert "nobody" in unknown.message
    assert "team" in unknown.message
    late = router.refused(ask("/", "X-Sandbox-ID: late"))
    assert (late.code, late.retry_after) == ("not_ready", 0), "its SDK is more patient without Retry-After"


def test_i4_the_pod_address_is_one_of_the_sandboxs_own(router: House) -> None:
    for text in ("10.1.0.5", "::ffff:10.1.0.5"):
        found = router.admit(ask("/", BOX, f"X-Sandbox-Pod-IP: {text}"))
        assert (found.sandbox.host, found.authority) == ("10.1.0.5", b"10.1.0.5:8888")
    found = router.admit(ask("/", BOX, "X-Sandbox-Pod-IP: FD00:0::5"))
    assert (found.sandbox.host, found.authority) == ("fd00::5", b"[fd00::5]:8888")


@pytest.mark.parametrize("text", ["10.9.9.9", "10.1.0.6", "8.8.8.8", "fd00::6"])
def test_i4_any_other_address_leads_where_the_sandbox_is(router: House, text: str) -> None:
    found = router.admit(ask("/", BOX, f"X-Sandbox-Pod-IP: {text}"))
    assert (found.sandbox.host, found.authority) == ("10.1.0.5", b"box.default.svc.cluster.local:8888")
    found = router.admit(ask("/", "X-Sandbox-ID: named", f"X-Sandbox-Pod-IP: {text}"))
    assert found.sandbox.host == "named.default.svc.cluster.local", "no address is known: never the caller's"


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "::ffff:127.0.0.1"],
)
def test_i4_no_address_of_this_host_or_link(router: House, text: str) -> None:
    assert router.refused(ask("/", BOX, f"X-Sandbox-Pod-IP: {text}")).status == 400
    assert router.admit(ask("/", BOX, "X-Sandbox-Pod-IP: 10.1.0.5")), "the control"


def test_an_address_that_the_provider_knows_is_the_targets_check(router: House) -> None:
    found = router.admit(ask("/", "X-Sandbox-ID: local", "X-Sandbox-Pod-IP: 127.0.0.9"))
    assert found.sandbox.host == "127.0.0.9", "dialled only where --allow-target opens it"


@pytest.mark.parametrize(
    ("host", "domain", "dialled"),
    [
        ("named.default.svc.cluster.local", "", "named.default.svc.cluster.local"),
        ("named.default.svc.cluster.local", "corp.example", "named.default.svc.corp.example"),
        ("service.default.svc.cluster.local", "corp.example", "service.default.svc.corp.example"),
        ("box.example.com", "corp.example", "box.example.com"),
        ("10.2.0.1", "corp.example", "10.2.0.1"),
    ],
)
def test_the_cluster_domain(host: str, domain: str, dialled: str) -> None:
    house = House(frozenset(("agent-sandbox",)), cluster_domain=domain)
    house.routes.put(Sandbox("named", host, namespace="default"))
    found = house.admit(ask("/", "X-Sandbox-ID: named"))
    assert (found.sandbox.host, found.authority) == (dialled, f"{dialled}:8888".encode())
    house.throttle.close()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("2.5e1", 25),
        ("1e-05", 1e-05),
        ("1e99", 180),
        ("179.9", 179.9),
        ("181", 180),
        ("0", 180),
        ("-1", 180),
        ("nan", 180),
        ("inf", 180),
        ("x", 180),
    ],
)
def test_the_callers_time_out(router: House, text: str, seconds: float) -> None:
    head = ask("/", BOX, f"X-Sandbox-Timeout: {text}")
    assert router.admit(head).timeout == seconds
    head.target = b"/again"
    assert router.admit(head).timeout == seconds, "also for a connection that is known"


def test_the_routers_token(router: House) -> None:
    guarded = House(frozenset(("agent-sandbox",)), router_token="s3cret")
    guarded.routes.put(Sandbox("box", "10.1.0.5"))
    for right in ("Bearer s3cret", "bearer s3cret", "Bearer \t s3cret"):
        assert guarded.status(ask("/", BOX, f"Authorization: {right}")) == 0
    for wrong in ("Bearer S3cret", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret x", ""):
        assert guarded.refused(ask("/", BOX, f"Authorization: {wrong}")).status == 401
    assert guarded.refused(ask("/", BOX)).status == 401
    assert guarded.refused(ask("/", BOX, "Authorization: Bearer s3cret", "Authorization: Bearer s3cret")).status == 401
    assert guarded.refused(ask("/", "X-Sandbox-ID: nobody")).status == 401, "nothing is told to strangers"
    assert router.status(ask("/", BOX, "Authorization: Bearer whatever")) == 0, "the control: a router without a token"
    assert b"authorization" in guarded.gate.stripped
    guarded.throttle.close()


def test_i6_the_routers_token_is_not_guessed_and_its_owner_not_locked_out() -> None:
    guarded = House(frozenset(("agent-sandbox",)), router_token="s3cret")
    guarded.routes.put(Sandbox("box", "10.1.0.5"))
    right, wrong = (ask("/", BOX, f"Authorization: Bearer {token}") for token in ("s3cret", "guess"))
    balancer, stranger = "192.0.2.1", "192.0.2.2"
    assert guarded.status(right, balancer) == 0
    for client in (balancer, stranger):
        assert [guarded.status(wrong, client) for _ in range(20)] == [401] * 20
    assert guarded.refused(right, stranger).status == 429, "right or wrong"
    again = ask("/", BOX, "Authorization: Bearer s3cret", "X: another header section")
    assert guarded.status(again, balancer) == 0, "others' mistakes behind one address"
    guarded.now += 1
    assert guarded.status(right, stranger) == 0, "a look a second"
    guarded.throttle.close()


def test_its_health(router: House) -> None:
    reply = router.reply(ask("/healthz"))
    assert (reply.status, reply.body) == (200, b'{"status":"ok"}')
    assert router.reply(ask("/status.ok")).body == b"OK"
    assert router.admit(ask("/healthz", BOX)).target == b"/healthz"


def test_other_ways_in_are_closed(router: House) -> None:
    for head in (ask("/box/80/"), ask("/", "OpenSandbox-Ingress-To: box-80"), ask("/", host="box-80.example.com")):
        assert router.refused(head).status == 400
