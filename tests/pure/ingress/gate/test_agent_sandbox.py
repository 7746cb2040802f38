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
        ]
    )
    yield made
    made.throttle.close()


def test_id_namespace_and_port(router: House) -> None:
    found = router.admit(ask("/a//b?c", BOX))
    assert (found.sandbox.id, found.port, found.target, found.prefix) == ("box", 8888, b"/a//b?c", b"")
    assert found.authority == b"box.default.svc.cluster.local:8888", "not the caller's Host"
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
        ((BOX, "X-Sandbox-Pod-IP: 10.9.9.9"), 400),
        ((BOX, "X-Sandbox-Pod-IP: 127.0.0.1"), 400),
        ((BOX, "X-Sandbox-Pod-IP: 169.254.169.254"), 400),
        ((BOX, "X-Sandbox-Namespace: team"), 404),
        (("X-Sandbox-ID: nobody",), 404),
        (("X-Sandbox-ID: late",), 503),
    ],
)
def test_what_is_refused(router: House, lines: tuple[str, ...], status: int) -> None:
    assert router.refused(ask("/", *lines)).status == status
    assert router.status(ask("/", BOX)) == 0, "the control"


def test_i4_the_pod_address_is_one_of_the_sandboxs_own(router: House) -> None:
    assert router.admit(ask("/", BOX, "X-Sandbox-Pod-IP: 10.1.0.5")).sandbox.host == "10.1.0.5"
    found = router.admit(ask("/", BOX, "X-Sandbox-Pod-IP: FD00:0::5"))
    assert (found.sandbox.host, found.authority) == ("fd00::5", b"[fd00::5]:8888")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0.5", 0.5),
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
    for right in ("Bearer s3cret", "bearer s3cret"):
        assert guarded.status(ask("/", BOX, f"Authorization: {right}")) == 0
    for wrong in ("Bearer S3cret", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret x", ""):
        assert guarded.refused(ask("/", BOX, f"Authorization: {wrong}")).status == 401
    assert guarded.refused(ask("/", BOX)).status == 401
    assert guarded.refused(ask("/", BOX, "Authorization: Bearer s3cret", "Authorization: Bearer s3cret")).status == 401
    assert guarded.refused(ask("/", "X-Sandbox-ID: nobody")).status == 401, "nothing is told to strangers"
    for _ in range(30):
        guarded.status(ask("/", BOX, "Authorization: Bearer wrong"))
    assert guarded.refused(ask("/", BOX, "Authorization: Bearer s3cret")).status == 429
    assert router.status(ask("/", BOX, "Authorization: Bearer whatever")) == 0, "the control: a router without a token"
    assert b"authorization" in guarded.gate.stripped
    guarded.throttle.close()


def test_its_health(router: House) -> None:
    reply = router.reply(ask("/healthz"))
    assert (reply.status, reply.body) == (200, b'{"status":"ok"}')
    assert router.reply(ask("/status.ok")).body == b"OK"
    assert router.admit(ask("/healthz", BOX)).target == b"/healthz"


def test_other_ways_in_are_closed(router: House) -> None:
    for head in (ask("/box/80/"), ask("/", "OpenSandbox-Ingress-To: box-80"), ask("/", host="box-80.example.com")):
        assert router.refused(head).status == 400
