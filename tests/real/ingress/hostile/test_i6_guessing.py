"""I6: signatures and tokens searched online. The searcher is slowed down, the owner is not; nothing is given away."""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.ingress.hostile import strict
    from tests.real.ingress.hostile.ground import Origin

SECRET = b"0123456789abcdef0123456789abcdef"
TOKEN = "correct-horse-battery"
KEYS = ["--secure-access-keys", "a=" + base64.b64encode(SECRET).decode()]
BOXES = {name: {"host": "127.0.0.1", "secure_access_token": TOKEN} for name in ("locked", "calm", "quiet", "twin")}

_addresses = (f"127.{second}.{third}.{fourth}" for second, third, fourth in itertools.product(
    range(10, 99), range(256), range(1, 255)
))  # fmt: skip


def fresh() -> str:
    """A client address that nobody has come from."""
    return next(_addresses)


def b36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def signature(box: str, port: int, expires: str, secret: bytes = SECRET, key: str = "a") -> str:
    """As the wire contract has it."""
    text = f"v1\nshort\n{box}\n{port}\n{expires}\n".encode()
    data = len(secret).to_bytes(4) + secret + len(text).to_bytes(4) + text
    return hashlib.sha256(data).hexdigest()[:8] + key


LATER = b36(int(time.time()) + 3600)
PAST = b36(int(time.time()) - 10)


def ask(
    gate: Gateway, box: str, port: int, *, signed: str = "", expires: str = LATER, token: str | None = None, source: str
) -> strict.Message:
    route = f"{box}-{port}" + (f"-{expires}-{signed}" if signed else "")
    access = "" if token is None else f"OpenSandbox-Secure-Access: {token}\r\n"
    raw = f"GET /in HTTP/1.1\r\nHost: app.test\r\nOpenSandbox-Ingress-To: {route}\r\n{access}Connection: close\r\n\r\n"
    return gate.ask(raw.encode(), source=source)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("guarded"), *KEYS, "--workers", "2", sandboxes=BOXES) as made:
        yield made


def test_i6_who_may_is_let_in(guarded: Gateway, module_origin: Origin) -> None:
    """The control."""
    port = module_origin.port
    assert ask(guarded, "calm", port, token=TOKEN, source=fresh()).status == 200
    assert ask(guarded, "calm", port, signed=signature("calm", port, LATER), source=fresh()).status == 200


def test_i6_one_401_for_all_causes(guarded: Gateway, module_origin: Origin) -> None:
    port = module_origin.port
    right = signature("calm", port, LATER)
    answers = [
        ask(guarded, "calm", port, source=fresh()),
        ask(guarded, "calm", port, token="wrong", source=fresh()),
        ask(guarded, "calm", port, token="", source=fresh()),
        ask(guarded, "calm", port, token=TOKEN[:-1], source=fresh()),
        ask(guarded, "calm", port, token=TOKEN + "x", source=fresh()),
        ask(guarded, "calm", port, token=TOKEN.upper(), source=fresh()),
        ask(guarded, "calm", port, token=TOKEN + ", " + TOKEN, source=fresh()),
        ask(guarded, "calm", port, token="wrong", signed=right, source=fresh()),
        ask(guarded, "calm", port, signed="00000000a", source=fresh()),
        ask(guarded, "calm", port, signed=right[:-1] + "b", source=fresh()),
        ask(guarded, "calm", port, signed=signature("calm", port, PAST), expires=PAST, source=fresh()),
        ask(guarded, "calm", port, signed=signature("calm", port + 1, LATER), source=fresh()),
        ask(guarded, "calm", port, signed=signature("quiet", port, LATER), source=fresh()),
        ask(guarded, "calm", port, signed=signature("calm", port, LATER, b"another secret"), source=fresh()),
        ask(guarded, "calm", port, signed=right, expires=b36(int(LATER, 36) + 1), source=fresh()),
    ]
    assert {answer.status for answer in answers} == {401}
    assert len({(answer.body, tuple(answer.headers)) for answer in answers}) == 1


def hunt(try_once: Callable[[], int], refusals: int = 40) -> list[int]:
    """What a searcher hears, as fast as he can ask, until he was put off so often; on a machine that is slower than
    the throttle never, then for a minute."""
    heard: list[int] = []
    end = time.monotonic() + 60
    while heard.count(429) < refusals and time.monotonic() < end:
        heard.append(try_once())
    return heard


def test_i6_signatures_searched_from_everywhere(guarded: Gateway, module_origin: Origin) -> None:
    """Each guess from another address: over the sandbox's budget hardly one is looked at, be it right or wrong. The
    owner's token, a visitor who was let in before, and the other sandboxes don't feel it."""
    port = module_origin.port
    right = signature("locked", port, LATER)
    visitor, owner = fresh(), fresh()
    assert ask(guarded, "locked", port, signed=right, source=visitor).status == 200
    guesses = (f"{number:08x}a" for number in itertools.count(1))
    began = time.monotonic()
    heard = hunt(lambda: ask(guarded, "locked", port, signed=next(guesses), source=fresh()).status)
    looked = heard.count(401)
    assert set(heard) <= {401, 429}
    assert looked <= 60 + 2 * 3 + 4 * (time.monotonic() - began) + 5, heard
    assert 429 in heard, "too slow a machine to tell anything"

    def right_among_wrong() -> int:
        """The right one while the search goes on: after a second without a guess it would be looked at."""
        ask(guarded, "locked", port, signed=next(guesses), source=fresh())
        return ask(guarded, "locked", port, signed=right, source=fresh()).status

    assert 429 in hunt(right_among_wrong, refusals=1)
    assert {ask(guarded, "locked", port, token=TOKEN, source=owner).status for _ in range(20)} == {200}
    assert {ask(guarded, "locked", port, signed=right, source=visitor).status for _ in range(20)} == {200}
    assert ask(guarded, "quiet", port, signed=signature("quiet", port, LATER), source=fresh()).status == 200


@pytest.mark.parametrize("kind", ["token", "signature"])
def test_i6_guesses_from_one_address(kind: str, guarded: Gateway, module_origin: Origin) -> None:
    """429 soon, for right and wrong alike; everybody else is served. Both workers count together."""
    port = module_origin.port
    source = fresh()
    numbers = itertools.count()

    def guess() -> int:
        number = next(numbers)
        if kind == "token":
            return ask(guarded, "twin", port, token=f"guess{number}", source=source).status
        return ask(guarded, "twin", port, signed=f"{number:08x}a", source=source).status

    began = time.monotonic()
    heard = hunt(guess)
    assert set(heard) == {401, 429}
    assert heard.count(401) <= 20 + 2 * (time.monotonic() - began) + 4
    late = ask(guarded, "twin", port, token=TOKEN, source=source)
    assert late.status in (429, 200)
    if late.status == 429:
        assert late.one("retry-after")
    assert ask(guarded, "twin", port, token=TOKEN, source=fresh()).status == 200


def test_i6_a_name_that_is_searched(guarded: Gateway, module_origin: Origin) -> None:
    """Unknown sandboxes count too, generously: who waits for his to appear may ask often."""
    source = fresh()
    polled = [ask(guarded, "coming", 80, source=source).status for _ in range(50)]
    assert set(polled) == {404}
    heard = hunt(lambda: ask(guarded, "coming", 80, source=source).status)
    assert set(heard) == {404, 429}
    assert ask(guarded, "coming", 80, source=fresh()).status == 404


def test_i6_pipelined_guesses_count_one_by_one(guarded: Gateway, module_origin: Origin) -> None:
    """Many on one connection, as fast as bytes go."""
    port = module_origin.port
    raw = b"".join(
        f"GET / HTTP/1.1\r\nHost: x\r\nOpenSandbox-Ingress-To: twin-{port}\r\n"
        f"OpenSandbox-Secure-Access: guess{number}\r\n\r\n".encode()
        for number in range(200)
    )
    with guarded.client(source=fresh()) as client:
        client.send(raw)
        heard: list[int] = []
        while len(heard) < 200 and (not heard or not client.ended):
            answer = client.answer()
            heard.append(answer.status)
            if answer.one("connection") == "close":
                break
    assert heard.count(401) <= 25
    assert set(heard) <= {401, 429}


def test_i6_the_secret_is_in_no_answer_and_no_log(guarded: Gateway, module_origin: Origin) -> None:
    port = module_origin.port
    answer = ask(guarded, "calm", port, token=TOKEN, signed=signature("calm", port, LATER), source=fresh())
    assert TOKEN.encode() not in answer.body + repr(answer.headers).encode()
    wrong = ask(guarded, "calm", port, token="leaky-guess", source=fresh())
    assert b"leaky-guess" not in wrong.body
    log = "\n".join(guarded.program.lines)
    for secret in (TOKEN, "leaky-guess", base64.b64encode(SECRET).decode(), signature("calm", port, LATER)):
        assert secret not in log
