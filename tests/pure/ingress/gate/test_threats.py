"""The rows of the threat matrix that are decided here, each tried with a control beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.gate import AGENT_STRIPPED, STRIPPED
from ingress.admission.verdict import Admission, Reply
from ingress.http1.head import Fields, RequestHead
from ingress.refusal import Refusal
from ingress.routes import Sandbox
from tests.pure.ingress.gate.asking import NOW, House, ask, signed

WRONG = "OpenSandbox-Secure-Access: wrong"
TOKEN = "OpenSandbox-Secure-Access: the token"


# -- I3: routing headers and their aliases ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "OpenSandbox_Ingress_To",
        "OpenSandbox.Ingress.To",
        "OpenSandbox-Ingress_To",
        "OPEN_SANDBOX_INGRESS",
        "X-OpenSandbox-Ingress-To",
    ],
)
def test_i3_an_alias_of_a_routing_header_routes_nothing(name: str) -> None:
    house = House(frozenset(("header", "host")))
    assert house.refused(ask("/", f"{name}: box-80")).status == 400
    assert house.admit(ask("/", f"{name}: other-80", "OpenSandbox-Ingress-To: box-80")).sandbox.id == "box"
    assert house.status(ask("/", "opensandbox-ingress-to: box-80")) == 0, "the control"
    house.throttle.close()


@pytest.mark.parametrize("name", ["OpenSandbox_Secure_Access", "OpenSandbox.Secure.Access"])
def test_i3_an_alias_of_the_access_header_opens_nothing(house: House, name: str) -> None:
    assert house.status(ask("/safe/80/", f"{name}: the token")) == 401
    assert house.status(ask("/safe/80/", TOKEN)) == 0, "the control"


def test_i3_what_never_reaches_a_sandbox() -> None:
    for name in (
        "opensandbox-ingress-to",
        "open-sandbox-ingress",
        "opensandbox-access-renew",
        "opensandbox-secure-access",
    ):
        assert name.encode() in STRIPPED
    assert b"authorization" not in STRIPPED
    assert b"authorization" in AGENT_STRIPPED


def test_i3_a_second_routing_header_is_not_chosen_from(house: House) -> None:
    refusal = house.refused(ask("/", "OpenSandbox-Ingress-To: box-80", "OpenSandbox-Ingress-To: safe-80"))
    assert refusal.status == 400


# -- I5: paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        "/..%2f..%2fsafe/80/",
        "/../../safe/8080/",
        "/../safe/8080/",
        "/./../../safe/80",
        "//safe/80/",
        "/;/../safe/80/",
        "/%00/x",
        "/%2e%2e/%2e%2e/safe/80/",
        "/\\..\\safe",
        "/#/../safe/80",
        "/http://safe-80.example.com/",
        "/?/../../safe/80/",
    ],
)
def test_i5_nothing_behind_the_prefix_leads_out_of_it(house: House, rest: str) -> None:
    found = house.admit(ask("/box/80" + rest))
    assert (found.sandbox.id, found.port, found.prefix) == ("box", 80, b"/box/80")
    assert found.target == rest.encode("latin-1")


@pytest.mark.parametrize(
    "target",
    ["/x/../box/80/", "/%62ox/80/", "/box%2f80/", "/box/%380/", "//box/80/", "/./box/80/", "\\box\\80\\", "/box;x/80/"],
)
def test_i5_nothing_before_the_prefix_is_tidied_up(target: str) -> None:
    house = House(frozenset(("uri",)))
    assert house.status(ask(target)) in (400, 404)
    assert house.status(ask("/box/80/")) == 0, "the control"
    house.throttle.close()


@given(st.binary(max_size=40).map(lambda octets: octets.replace(b"?", b"")))
def test_i5_every_octet_behind_the_prefix_goes_on(rest: bytes) -> None:
    house = House(frozenset(("uri",)))
    found = house.gate.admit(
        RequestHead(b"GET", b"/box/80/" + rest, 11, Fields([b"Host: x"]), 0), "192.0.2.1", False, NOW
    )
    if isinstance(found, Admission):
        assert found.target == b"/" + rest
    house.throttle.close()


# -- I6: guessing ----------------------------------------------------------------------------------------------------


def test_i6_wrong_tokens_from_one_address_are_throttled_and_a_right_one_gets_through_a_second_later(
    house: House,
) -> None:
    assert [house.status(ask("/safe/80/", f"OpenSandbox-Secure-Access: {n}")) for n in range(20)] == [401] * 20
    assert house.refused(ask("/safe/80/", WRONG)).retry_after == 1
    assert house.status(ask("/safe/80/", TOKEN)) == 429
    assert house.status(ask("/safe/80/", TOKEN), "192.0.2.200") == 0, "the control: another address"
    house.now += 1
    assert house.status(ask("/safe/80/", TOKEN)) == 0


def test_i6_a_request_that_shows_nothing_is_no_guess(house: House) -> None:
    assert {house.status(ask("/safe/80/")) for _ in range(100)} == {401}
    assert house.status(ask("/safe/80/", TOKEN)) == 0


def test_i6_a_signature_is_not_found_from_many_addresses() -> None:
    """One guess from each of 3,000 addresses in ten seconds, and then the right one: it isn't looked at either."""
    house, calm = House(), House()
    answers = []
    for number in range(3000):
        house.now = NOW + number / 300
        guess = signed()._replace(signature=f"{number:08x}a")
        answers.append(house.status(ask(guess.path), f"10.{number >> 8}.{number & 255}.1"))
    assert answers.count(401) <= 60 + 3 + 4 * 10
    assert answers.count(429) > 2800
    assert house.status(ask(signed().path), "192.0.2.5") == 429, "right, and not looked at"
    assert calm.status(ask(signed().path), "192.0.2.5") == 0, "the control"
    house.throttle.close()
    calm.throttle.close()


def test_i6_the_owner_is_never_locked_out(house: House) -> None:
    link = ask(signed().path)
    assert house.status(link, "192.0.2.1") == 0
    for number in range(500):
        house.status(ask(signed()._replace(signature="00000000a").path), f"10.0.{number >> 8}.{number & 255}")
    assert house.status(ask("/safe/8080/", TOKEN), "192.0.2.9") == 0, "the token, from anywhere"
    assert house.status(ask(signed().path), "192.0.2.1") == 0, "a signature, from where it was right lately"
    assert house.status(ask(signed().path), "192.0.2.2") in (0, 429)
    tries = [house.status(ask(signed().path), f"203.0.113.{number}") for number in range(20)]
    assert 429 in tries, "the control: strangers wait"
    house.now += 1
    assert house.status(ask(signed().path), "203.0.113.99") == 0, "and get their turn"


def test_i6_one_sandboxs_budget_is_not_anothers(house: House) -> None:
    house.routes.put(Sandbox("other", "10.0.0.4", token="t"))
    house.routes.put(Sandbox("third", "10.0.0.4", token="t", namespace="team"))
    for number in range(70):
        house.status(ask(signed()._replace(signature="00000000a").path), f"10.0.0.{number}")
    assert 429 in {house.status(ask(signed().path), f"10.0.1.{number}") for number in range(10)}
    for sandbox in ("other", "third"):
        assert {house.status(ask(signed(sandbox).path), f"10.0.1.{number}") for number in range(10)} == {0}


def test_i6_a_sandbox_that_is_known_by_two_names_has_one_budget(house: House) -> None:
    house.routes.candidates = lambda name: (name, name.lower())
    for number in range(60):
        asked = ("safe", "SAFE", "Safe")[number % 3]
        guess = signed()._replace(sandbox=asked, signature="00000000a")
        assert house.status(ask(guess.path), f"10.0.0.{number}") == 401
    assert {house.status(ask(signed().path), f"10.0.1.{number}") for number in range(10)} == {0, 429}


def test_i6_names_are_not_searched_either(house: House) -> None:
    """Past the budget for 404s a guarded sandbox can't be told from none; who knows its token is let in."""
    asked = [house.status(ask(f"/guess{number}/80/")) for number in range(130)]
    assert asked == [404] * 120 + [429] * 10
    assert house.status(ask("/safe/80/")) == 429
    assert house.status(ask("/late/80/")) == 429
    assert house.status(ask("/safe/80/", WRONG)) == 429
    assert house.status(ask("/safe/80/", TOKEN)) == 0
    assert house.status(ask("/box/80/")) == 0
    house.now += 0.1
    assert house.status(ask("/nobody/80/")) == 404, "ten a second go on"


def test_i6_ports_that_are_not_listed_count_as_missing(house: House) -> None:
    house.routes.put(Sandbox("narrow", "10.0.0.4", ports=frozenset((80,))))
    assert [house.status(ask(f"/narrow/{port}/")) for port in range(1000, 1130)].count(429) == 10


LINES = st.lists(st.binary(max_size=40).map(lambda octets: octets.replace(b"\n", b"")), max_size=4)


@given(st.binary(max_size=60), LINES, st.sampled_from(["GET", "POST", "OPTIONS"]))
def test_any_octets_are_let_in_answered_or_refused(target: bytes, lines: list[bytes], method: str) -> None:
    names = (b"Host:", b"OpenSandbox-Ingress-To:", b"Cookie:", b"Origin:", b"Referer:", b"OpenSandbox-Secure-Access:")
    house = House(route_cookie=True)
    fields = Fields([names[at % len(names)] + line for at, line in enumerate(lines)])
    try:
        found = house.gate.admit(RequestHead(method.encode(), target, 11, fields, 0), "192.0.2.1", False, NOW)
        assert isinstance(found, Admission | Reply)
    except Refusal:
        pass
    house.throttle.close()


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_link_is_let_in_or_refused(expires: str, to: str) -> None:
    house = House()
    target = f"/safe/80/.sallyport/enter?e={expires}&s=00000000a&to={to}".encode()
    with pytest.raises(Refusal) as caught:
        house.gate.admit(RequestHead(b"GET", target, 11, Fields([b"Host: x"]), 0), "192.0.2.1", False, NOW)
    assert caught.value.status in (400, 401)
    house.throttle.close()
