"""Keys, signatures, tokens: held against the contract's words, written a second time here."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.access import BadKeys, KeyRing, from_base36, is_signature, sign, to_base36, token_equals
from tests.pure.ingress.gate.asking import base36, reference_signature

SECRETS = st.binary(min_size=1, max_size=80)
IDS = st.text("abcXYZ019-._", min_size=1, max_size=30)
PORTS = st.integers(1, 65535)
TIMES = st.integers(0, 36**13 - 1)


def test_a_signature_by_hand() -> None:
    # SHA-256(00000006 "secret" 00000019 "v1\nshort\nbox\n8080\ntkuhsg\n"), by sha256sum
    assert sign(b"secret", "box", 8080, "tkuhsg") == reference_signature(b"secret", "", "box", 8080, "tkuhsg")
    assert len(b"v1\nshort\nbox\n8080\ntkuhsg\n") == 0x19
    assert sign(b"secret", "box", 8080, "tkuhsg") == "ced27db0"


@given(SECRETS, st.sampled_from("0az9"), IDS, PORTS, TIMES)
def test_what_sign_makes_verify_accepts(secret: bytes, key_id: str, sandbox: str, port: int, expires: int) -> None:
    ring = KeyRing({key_id: secret})
    made = ring.sign(key_id, sandbox, port, expires)
    assert made == reference_signature(secret, key_id, sandbox, port, base36(expires))
    assert ring.verify(sandbox, port, base36(expires), made, 0.0)


@given(SECRETS, IDS, PORTS, st.integers(1, 2**40))
def test_it_is_good_until_its_second_has_passed(secret: bytes, sandbox: str, port: int, expires: int) -> None:
    ring = KeyRing({"k": secret})
    made = ring.sign("k", sandbox, port, expires)
    assert ring.verify(sandbox, port, base36(expires), made, expires + 0.99)
    assert not ring.verify(sandbox, port, base36(expires), made, expires + 1.0)


def test_everything_that_is_signed_counts() -> None:
    ring = KeyRing({"a": b"one", "b": b"two"})
    good = ring.sign("a", "box", 80, 1000)
    e = base36(1000)
    assert ring.verify("box", 80, e, good, 0.0)
    assert not ring.verify("bax", 80, e, good, 0.0)
    assert not ring.verify("Box", 80, e, good, 0.0)
    assert not ring.verify("box", 81, e, good, 0.0)
    assert not ring.verify("box", 80, base36(1001), good, 0.0)
    assert not ring.verify("box", 80, e, good[:8] + "b", 0.0)
    assert not ring.verify("box", 80, e, good[:8] + "c", 0.0)
    for at in range(8):
        wrong = good[:at] + ("0" if good[at] != "0" else "1") + good[at + 1 :]
        assert not ring.verify("box", 80, e, wrong, 0.0)


def test_no_secret_stands_in_for_a_key_that_is_not_there() -> None:
    ring = KeyRing({"a": b"one"})
    for stand_in in (b"", b"\0", b"\0" * 32, b"\0" * 64):
        made = reference_signature(stand_in, "z", "box", 80, base36(1000))
        assert not ring.verify("box", 80, base36(1000), made, 0.0)
        assert not KeyRing().verify("box", 80, base36(1000), made, 0.0)
    assert KeyRing({"z": b"\0" * 32}).verify(
        "box", 80, base36(1000), reference_signature(b"\0" * 32, "z", "box", 80, base36(1000)), 0.0
    ), "the control"


def test_keys_are_rotated_by_two_ids_at_once() -> None:
    old, both, new = KeyRing({"a": b"old"}), KeyRing({"a": b"old", "b": b"new"}), KeyRing({"b": b"new"})
    before, after = old.sign("a", "box", 80, 99), both.sign("b", "box", 80, 99)
    e = base36(99)
    assert [ring.verify("box", 80, e, before, 0) for ring in (old, both, new)] == [True, True, False]
    assert [ring.verify("box", 80, e, after, 0) for ring in (old, both, new)] == [False, True, True]


@given(st.text(max_size=20), st.text(max_size=12))
def test_no_text_is_more_than_wrong(expires: str, signature: str) -> None:
    assert KeyRing({"a": b"x"}).verify("box", 80, expires, signature, 0.0) in (True, False)
    if not is_signature(signature) or from_base36(expires) is None:
        assert not KeyRing({"a": b"x"}).verify("box", 80, expires, signature, 0.0)


@given(TIMES)
def test_base_36_there_and_back(number: int) -> None:
    assert to_base36(number) == base36(number)
    assert from_base36(to_base36(number)) == number


@pytest.mark.parametrize("text", ["", "01", "A", "-1", "1_0", " 1", "1 ", "\u0661", "z" * 14, "1" * 14])
def test_what_is_no_expiry(text: str) -> None:
    assert from_base36(text) is None


def test_zero_is_an_expiry() -> None:
    assert from_base36("0") == 0


# -- keys -------------------------------------------------------------------------------------------------------------


def b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def test_keys_in_a_flag_and_in_a_file() -> None:
    one, two = b"\x00" * 32, b"\xff" * 20
    wanted = KeyRing({"a": one, "7": two})
    assert KeyRing.parse(f"a={b64(one)},7={b64(two)}") == wanted
    assert KeyRing.parse(f" a = {b64(one)} , 7={b64(two)} ,") == wanted
    assert KeyRing.parse(f"# ours\na={b64(one)} # old\n\n7={b64(two)}\n") == wanted
    assert wanted.ids == ("7", "a")
    assert wanted.short == ()
    assert KeyRing({"a": b"x" * 15}).short == ("a",)
    assert bool(wanted)
    assert not KeyRing()


SECRET_TEXT = b64(b"a secret that must not be told..")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key"),
        (" , ", "no key"),
        (SECRET_TEXT.rstrip("="), "entry 1"),
        (f"a={SECRET_TEXT},{SECRET_TEXT}", "entry 2"),
        (f"A={SECRET_TEXT}", "entry 1"),
        (f"ab={SECRET_TEXT}", "entry 1"),
        (f"={SECRET_TEXT}", "entry 1"),
        (f"a={SECRET_TEXT},a={SECRET_TEXT}", "key 'a' is given twice"),
        (f"a={SECRET_TEXT[:-1]}", "key 'a' is not base64"),
        (f"a={SECRET_TEXT}!", "key 'a' is not base64"),
        ("a=" + SECRET_TEXT.replace("Z", "-"), "write + and /"),
        ("a=\u00e9\u00e9\u00e9\u00e9", "key 'a' is not base64"),
        ("a=", "key 'a' has no secret"),
        ("b====", "key 'b' is not base64"),
    ],
)
def test_faults_name_the_key_and_never_the_secret(text: str, says: str) -> None:
    with pytest.raises(BadKeys) as caught:
        KeyRing.parse(text)
    assert says in str(caught.value)
    assert SECRET_TEXT[:8] not in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_ring_or_a_fault(text: str) -> None:
    try:
        assert KeyRing.parse(text)
    except BadKeys:
        pass


def test_a_ring_shows_no_secret() -> None:
    assert repr(KeyRing({"a": b"hush", "b": b"hush"})) == "KeyRing(a, b)"


@pytest.mark.parametrize(
    ("sent", "token", "equal"),
    [
        (b"t0ken", "t0ken", True),
        (b"t0ken", " t0ken\n", True),
        (b" t0ken ", "t0ken", True),
        (b"T0ken", "t0ken", False),
        (b"t0ke", "t0ken", False),
        (b"", "t0ken", False),
        ("schl\u00fcssel".encode(), "schl\u00fcssel", True),
        (b"\xff", "t0ken", False),
    ],
)
def test_a_token_is_equal_or_not(sent: bytes, token: str, equal: bool) -> None:
    assert token_equals(sent, token) is equal
