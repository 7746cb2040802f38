"""What a connection is told again is what it would be told anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.access import KeyRing
from ingress.admission.verdict import Admission, Reply
from ingress.http1.head import Fields, RequestHead
from ingress.refusal import Refusal
from ingress.routes import Sandbox
from tests.pure.ingress.gate.asking import CLIENT, KEYS, NOW, House, ask, signed

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


def follow(house: House, first: str, second: str, *lines: str) -> Told:
    """What the second target is answered on a connection that had the first let in, with the same header section."""
    fields = ask(first, *lines).fields
    house.admit(RequestHead(b"GET", first.encode(), 11, fields, 0))
    return told(house, RequestHead(b"GET", second.encode(), 11, fields, 0), CLIENT)


DENIED = (401, "access_denied")
WRONG = ROUTE._replace(signature="00000000a")
TOKEN = "OpenSandbox-Secure-Access: the token"


def test_a_right_signature_proves_itself_only(house: House) -> None:
    for stale in (False, True):  # memories, for the routes have changed
        for other in (WRONG, ROUTE._replace(port=8081), ROUTE._replace(expires=BRIEF.expires)):
            fields = ask().fields
            house.admit(RequestHead(b"GET", ROUTE.path.encode(), 11, fields, 0))
            if stale:
                house.routes.put(Sandbox("new", f"10.0.{other.port}.9"))
            assert told(house, RequestHead(b"GET", other.path.encode(), 11, fields, 0), CLIENT) == DENIED
        assert follow(house, ROUTE.path, "/safe/8080/") == DENIED
    assert isinstance(follow(house, ROUTE.path, BRIEF.path), Admission), "the control"


def test_a_known_prefix_is_no_longer_than_it_is(house: House) -> None:
    longer = follow(house, "/box/80/x", "/box/800/x")
    assert isinstance(longer, Admission)
    assert (longer.port, longer.target) == (800, b"/x")
    assert follow(house, "/box/80/x", "/box/80#x") == (400, "bad_route")
    assert follow(house, ROUTE.path, ROUTE.path + "x") == DENIED


def test_a_signed_part_is_cut_off_behind_a_known_prefix_too(house: House) -> None:
    found = follow(house, "/safe/8080/x", ROUTE.path + "/x", TOKEN)
    assert isinstance(found, Admission)
    assert (found.prefix, found.target) == (ROUTE.path.encode(), b"/x")
    bare = follow(house, "/box/80/x", "/box/80/tkuhsg/00000000a/x")
    assert isinstance(bare, Admission)
    assert bare.target == b"/tkuhsg/00000000a/x"


def test_a_link_is_one_on_a_known_connection_too(house: House) -> None:
    assert isinstance(follow(house, "/safe/8080/x", "/safe/8080" + ROUTE.link, TOKEN), Reply)
    by_host = ["OpenSandbox-Ingress-To: safe-8080", TOKEN]
    assert isinstance(follow(house, "/x", BRIEF.link, *by_host), Reply)


def test_a_page_asked_for_again_after_a_form_sets_the_route_cookie() -> None:
    house = House(route_cookie=True)
    head = ask("/box/80/", "Accept: text/html", method="POST")
    assert house.admit(head).set_cookie == b""
    head.method = b"GET"
    assert house.admit(head).set_cookie
    house.throttle.close()


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
