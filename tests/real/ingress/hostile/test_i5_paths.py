"""I5: path mode. What follows the prefix arrives byte for byte, and nothing gets out of the prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Origin, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.ground import Ground

UNCHANGED = [
    b"/",
    b"//",
    b"///a//b//",
    b"/a%2Fb",
    b"/a%2fb",
    b"/..%2f..%2fetc",
    b"/%2e%2e/x",
    b"/%2E%2e%2F%2e%2e%2f",
    b"/../x",
    b"/..",
    b"/../../../../etc/passwd",
    b"/./a/./b",
    b"/a;b=c/d;e",
    b"/..;/x",
    b"/;/",
    b"/a%00b",
    b"/%0d%0aX-A:%20b",
    b"/%",
    b"/%zz",
    b"/%c3%a9",
    b"/\xc3\xa9?\xe4\xb8\x96=\xff",
    b"/\x80\x85\xa0\xff/..",
    b"/a+b%20c",
    b"/~a!$&'()*,=:@",
    b"/?",
    b"/?a=b&c=/other/1/",
    b"/a?b?c",
    b"/a?b=%2e%2e/",
    b"/http://evil.test/",
    b"//evil.test/x",
    b"/../other/OTHER/x",
    b"/..%2fother%2fOTHER/x",
    b"/../../other/OTHER/x",
    b"/%2e%2e/%2e%2e/other/OTHER/",
    b"/box/PORT/x",
    b"/0/deadbeef1/x",
]
PREFIXES = [
    b"//box/PORT/x",
    b"/./box/PORT/x",
    b"/../box/PORT/x",
    b"/x/../box/PORT/x",
    b"/box//PORT/x",
    b"/box/./PORT/x",
    b"/box%2fPORT/x",
    b"/box/PORT%2fx",
    b"/b%6fx/PORT/x",
    b"/%62ox/PORT/x",
    b"/BOX/PORT/x",
    b"/box/0PORT/x",
    b"/box/+PORT/x",
    b"/box/-1/x",
    b"/box/0/x",
    b"/box/65536/x",
    b"/box/99999999999/x",
    b"/box/0x50/x",
    b"/box/PORT;x/x",
    b"/box;x/PORT/x",
    b"/box/PORT:80/x",
    b"/box:80/PORT/x",
    b"/box\\PORT/x",
    b"/box/PORT%00/x",
    b"/box%00/PORT/x",
    b"/box/PORT#/x",
    b"/box#/PORT/x",
    b"/b\xc3\xb6x/PORT/x",
    b"/box\xc2\xa0/PORT/x",
    b"/box/\xd9\xa1PORT/x",
    b"/box/PORT\xc2\x85/x",
    b"\xef\xbc\x8fbox/PORT/x",
    b"/box/%PORT/x",
    b"/box?/PORT/x",
    b"/box",
    b"/box/",
    b"/",
    b"/..",
    b"/%2e/box/PORT/",
    b"/box/ PORT/x",
    b"/" + b"b" * 129 + b"/PORT/x",
]


@pytest.fixture(scope="module")
def by_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """`--mode uri`, as existing installations have it."""
    sandboxes = {"box": {"host": "127.0.0.1"}, "other": {"host": "127.0.0.1"}, "a.b_c": {"host": "127.0.0.1"}}
    with Gateway(tmp_path_factory.mktemp("path"), "--mode", "uri", sandboxes=sandboxes) as made:
        yield made


@pytest.fixture(scope="module")
def other(ground: Ground) -> Iterator[Origin]:
    """Somebody else's application."""
    made = ground.origin(echo)
    yield made
    made.close()


def raw(target: bytes, origin: Origin, other: Origin, host: bytes = b"app.test") -> bytes:
    filled = target.replace(b"PORT", str(origin.port).encode()).replace(b"OTHER", str(other.port).encode())
    return b"GET " + filled + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("rest", UNCHANGED, ids=lambda rest: rest.decode("latin-1"))
def test_i5_bytes_after_the_prefix_are_untouched(
    rest: bytes, by_path: Gateway, module_origin: Origin, other: Origin
) -> None:
    port = str(module_origin.port).encode()
    mark = module_origin.mark()
    answer = by_path.ask(raw(b"/box/PORT" + rest, module_origin, other))
    assert answer.status == 200
    ((_, data),) = module_origin.since(mark)
    (seen,) = strict.requests(data).messages
    assert seen.target == rest.replace(b"PORT", port).replace(b"OTHER", str(other.port).encode())
    assert seen.one("x-forwarded-prefix") == f"/box/{module_origin.port}"
    assert other.links == []


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (b"/box/PORT", b"/"),
        (b"/box/PORT?a=b", b"/?a=b"),
        (b"/box/PORT?", b"/?"),
        (b"http://app.test/box/PORT/x", b"/x"),
        (b"http://app.test/box/PORT//x", b"//x"),
        (b"HTTP://APP.test:80/box/PORT/../x", b"/../x"),
        (b"/a.b_c/PORT/x", b"/x"),
    ],
    ids=lambda value: value.decode(),
)
def test_i5_a_prefix_alone_and_absolute_forms(
    target: bytes, wanted: bytes, by_path: Gateway, module_origin: Origin, other: Origin
) -> None:
    mark = module_origin.mark()
    assert by_path.ask(raw(target, module_origin, other)).status == 200
    ((_, data),) = module_origin.since(mark)
    assert strict.requests(data).messages[0].target == wanted


@pytest.mark.parametrize("target", PREFIXES, ids=lambda target: target.decode()[:40])
def test_i5_a_crooked_prefix_leads_nowhere(
    target: bytes, by_path: Gateway, module_origin: Origin, other: Origin
) -> None:
    """Nothing is decoded or tidied up on the way to the look-up: what isn't exactly a prefix is none."""
    mark = module_origin.mark()
    assert by_path.ask(raw(target, module_origin, other)).status in (400, 404)
    assert module_origin.since(mark) == []


@pytest.mark.parametrize(
    "target", [b"http://evil.test/box/PORT/x", b"http://app.test:81/box/PORT/x", b"http://a@app.test/box/PORT/"]
)
def test_i5_an_authority_that_disagrees(target: bytes, by_path: Gateway, module_origin: Origin, other: Origin) -> None:
    mark = module_origin.mark()
    assert by_path.ask(raw(target, module_origin, other)).status == 400
    assert module_origin.since(mark) == []


def test_i5_a_fragment_has_one_reading(by_path: Gateway, module_origin: Origin, other: Origin) -> None:
    """Refused, or passed on as it is; never cut off and passed on."""
    mark = module_origin.mark()
    status = by_path.ask(raw(b"/box/PORT/a#b", module_origin, other)).status
    arrived = [strict.requests(data).messages[0].target for _, data in module_origin.since(mark)]
    assert (status, arrived) in ((400, []), (200, [b"/a#b"]))


def test_i5_the_neighbour_is_reached_by_its_own_name(by_path: Gateway, ground: Ground) -> None:
    """The control: there is a neighbour, and a plain path finds it."""
    origin = ground.origin(echo)
    try:
        answer = by_path.ask(raw(b"/other/PORT/x", origin, origin))
        assert (answer.status, answer.body) == (200, b"GET /x 0")
    finally:
        origin.close()
