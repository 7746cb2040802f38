"""What a connection is told again is what it would be told anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingress.access import KeyRing
from ingress.gate import Admission, Reply
from ingress.head import Fields, RequestHead
from ingress.refusal import Refusal
from ingress.routes import Sandbox
from tests.pure.ingress.gate.asking import KEYS, NOW, House, ask, signed

ROUTE = signed()
BRIEF = signed(until=NOW + 30)
TARGETS = [
    "/",
    "/x?y",
    "//x",
    "*",
    "/status.ok",
    "/box/80",
    "/box/80/",
    "/box/80/x?/y",
    "/box/8/x",
    "/box/800/x",
    "/box/80#x",
    "/box/80/tkuhsg/00000000a/x",
    "/safe/8080/x",
    "/safe/8080/../x",
    "/safe/8080?x",
    f"{ROUTE.path}/x",
    ROUTE.path,
    f"{ROUTE.path}x/y",
    f"{BRIEF.path}/x",
    f"{signed()._replace(signature='00000000a').path}/x",
    "/safe/8080/.sallyport/enter?e=z&s=00000000a",
    "/.sallyport/enter?e=z&s=00000000a",
    "/nobody/80/",
    "http://gw.example.com/box/80/x",
    "http://other.example/box/80/x",
    "/static/app.js",
]
SECTIONS: list[list[str]] = [
    [],
    ["OpenSandbox-Ingress-To: box-80"],
    ["OpenSandbox-Ingress-To: safe-8080", "OpenSandbox-Secure-Access: the token"],
    ["OpenSandbox-Ingress-To: " + ROUTE.token],
    ["OpenSandbox-Secure-Access: the token"],
    ["OpenSandbox-Secure-Access: wrong"],
    ["Accept: text/html", "Cookie: sallyport-route=box/80"],
    ["Accept: text/html", "Referer: http://gw.example.com/safe/8080/", "OpenSandbox-Secure-Access: the token"],
    ["Referer: http://gw.example.com" + ROUTE.path + "/", "OpenSandbox-Access-Renew: skip"],
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(SECTIONS),
        st.sampled_from(TARGETS),
        st.sampled_from(["GET", "POST", "OPTIONS"]),
        st.integers(0, 40),
    )
    | st.sampled_from(["move", "guard", "drop", "put", "keys", "no keys"]),
    max_size=25,
)
Told = Admission | Reply | tuple[int, str]


def told(house: House, head: RequestHead, client: str) -> Told:
    try:
        return house.gate.admit(head, client, False, house.now)
    except Refusal as refusal:
        return refusal.status, refusal.code


@given(STEPS, st.booleans())
def test_a_known_header_section_is_answered_like_a_new_one(steps: list[object], route_cookie: bool) -> None:
    """The same play twice: in one each section is one Fields object, as on a connection; in the other it is made anew.

    Every request comes from an address of its own, so that no counter speaks; the connection's is one for each section.
    """
    old, new = House(route_cookie=route_cookie), House(route_cookie=route_cookie)
    known: dict[tuple[str, ...], Fields] = {}
    for number, step in enumerate(steps):
        for house in (old, new):
            if step == "move":
                house.routes.put(Sandbox("box", f"10.0.1.{number}"))
            elif step == "guard":
                house.routes.put(Sandbox("box", "10.0.0.1", token="the token"))
            elif step == "drop":
                house.routes.drop("box")
            elif step == "put":
                house.routes.put(Sandbox("box", "10.0.0.1"))
            elif step == "keys":
                house.gate.keys = KEYS
            elif step == "no keys":
                house.gate.keys = KeyRing()
        if isinstance(step, str):
            continue
        assert isinstance(step, tuple)
        lines, target, method, seconds = step
        fresh = ask(target, *lines, method=method)
        fields = known.setdefault(tuple(lines), ask(target, *lines).fields)
        old.now = new.now = old.now + seconds
        first = told(old, RequestHead(fresh.method, fresh.target, 11, fields, 0), f"10.1.0.{len(lines)}")
        second = told(new, fresh, f"10.2.{number}.1")
        if first == (429, "throttled"):
            break
        assert first == second
    old.throttle.close()
    new.throttle.close()


OTHERS = [
    "Accept: text/html",
    "Accept: */*",
    "Sec-Fetch-Dest: document",
    "Referer: http://gw.example.com/box/80/",
    "X: y",
]


@given(STEPS, st.lists(st.lists(st.sampled_from(OTHERS), max_size=3), min_size=1))
def test_a_section_that_differs_in_what_is_not_looked_at_shares_the_memory(
    steps: list[object], more: list[list[str]]
) -> None:
    """A connection's memo goes on to its next section where only other headers changed."""
    old, new = House(route_cookie=True), House(route_cookie=True)
    memos: dict[tuple[str, ...], dict[str, object]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, str):
            continue
        assert isinstance(step, tuple)
        lines, target, method, seconds = step
        lines = [*lines, *more[number % len(more)]]
        fresh, again = ask(target, *lines, method=method), ask(target, *lines, method=method)
        kept = tuple(line for line in lines if line.partition(":")[0].lower().encode() in old.gate.looks_at)
        again.fields.memo = memos.get(kept, {}).copy()
        old.now = new.now = old.now + seconds
        first = told(old, again, f"10.1.0.{len(kept)}")
        memos[kept] = again.fields.memo.copy()
        second = told(new, fresh, f"10.2.{number}.1")
        if first == (429, "throttled"):
            break
        assert first == second
    old.throttle.close()
    new.throttle.close()


def test_what_one_client_proved_another_has_to_prove(house: House) -> None:
    """Should two connections ever share a header section, a path's signature must not be had from it without a look."""
    fields = ask().fields
    right = RequestHead(b"GET", ROUTE.path.encode(), 11, fields, 0)
    assert house.status(right, "192.0.2.1") == 0
    for _ in range(20):
        house.status(ask("/safe/8080/", "OpenSandbox-Secure-Access: wrong"), "192.0.2.2")
    assert house.status(right, "192.0.2.2") == 429
    assert house.status(right, "192.0.2.1") == 0, "the control"


def test_a_proof_is_not_looked_at_twice_even_over_budget(house: House) -> None:
    head = ask("/safe/8080/x", "OpenSandbox-Secure-Access: the token")
    assert house.status(head) == 0
    for _ in range(20):
        house.refused(ask("/safe/8080/", "OpenSandbox-Secure-Access: wrong"))
    assert house.refused(ask("/safe/8080/", "OpenSandbox-Secure-Access: the token")).status == 429
    house.now += 0.5
    house.routes.put(Sandbox("other", "10.0.0.9"))  # and every memory is gone over again
    assert house.status(head) == 0
