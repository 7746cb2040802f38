"""Which sandbox a request names, and what is answered where it names none: each line of the contract by itself."""

from __future__ import annotations

import base64
import itertools
import json
import time
from typing import TYPE_CHECKING

import pytest

from ingress.admission.access import KeyRing, to_base36
from tests.real.ingress.hostile.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile import strict
    from tests.real.ingress.hostile.ground import Origin

SECRET = b"0123456789abcdef0123456789abcdef"
KEYS = ["--secure-access-keys", f"a={base64.b64encode(SECRET).decode()}"]
RING = KeyRing({"a": SECRET})
TOKEN = "correct-horse-battery"
LATER = to_base36(int(time.time()) + 3600)
LONG = "x" * 128

HERE = {"host": "127.0.0.1"}
SANDBOXES = {
    "box": HERE,
    "plain-": HERE,
    "Case": HERE,
    "a.b_c": HERE,
    "my-box": HERE,
    "9": HERE,
    LONG: HERE,
    "blank": {**HERE, "secure_access_token": " \t"},
    "locked": {**HERE, "secure_access_token": TOKEN},
    "sleepy": {**HERE, "ready": False, "secure_access_token": TOKEN},
    "strict": {**HERE, "ports": [1]},
    "dead": {"host": "127.0.0.1", "ports": [9]},
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With keys, by header, host name and path."""
    with Gateway(tmp_path_factory.mktemp("contract"), *KEYS, sandboxes=SANDBOXES) as made:
        yield made


_addresses = (f"127.{second}.{third}.7" for second, third in itertools.product(range(100, 250), range(250)))


def signed(box: str, port: int, expires: str = LATER) -> str:
    return RING.sign("a", box, port, int(expires, 36))


def ask(gate: Gateway, port: int, target: str = "/in", *lines: str, host: str | None = "app.test") -> strict.Message:
    """A GET from an address that has not failed yet. PORT in target, host and lines: the origin's; SIG: a right
    signature for `locked` there; EXP: when it ends."""
    hosts = [] if host is None else [f"Host: {host}"]
    raw = "\r\n".join([f"GET {target} HTTP/1.1", *hosts, *lines, "Connection: close", "", ""])
    raw = raw.replace("PORT", str(port)).replace("SIG", signed("locked", port)).replace("EXP", LATER)
    return gate.ask(raw.encode("latin-1"), source=next(_addresses))


def outcome(answer: strict.Message) -> int | str:
    """The target that the sandbox was asked for, or the gateway's own status."""
    if answer.one("Sallyport-Error") is None and answer.status == 200:
        return answer.body.split(b" ")[1].decode("latin-1")
    return answer.status


TO = "OpenSandbox-Ingress-To: "
OLD = "OPEN-SANDBOX-INGRESS: "
IN = "/in"

BY_HEADER: dict[str, tuple[list[str], int | str]] = {
    "new": ([TO + "box-PORT"], IN),
    "old": ([OLD + "box-PORT"], IN),
    "odd case": (["opensandbox-ingress-TO: box-PORT"], IN),
    "the new one counts": ([TO + "box-PORT", OLD + "nobody-PORT"], IN),
    "the new one counts, whichever stands first": ([OLD + "nobody-PORT", TO + "box-PORT"], IN),
    "an empty new one is none": ([TO, OLD + "box-PORT"], IN),
    "both empty": ([TO, OLD], 400),
    "twice": ([TO + "box-PORT", TO + "box-PORT"], 400),
    "the old one twice": ([OLD + "box-PORT", OLD + "box-PORT"], 400),
    "the old one twice beside the new one": ([TO + "box-PORT", OLD + "box-PORT", OLD + "box-PORT"], 400),
    "the last hyphen": ([TO + "my-box-PORT"], IN),
    "a hyphen at the end": ([TO + "plain--PORT"], IN),
    "dots and underscores": ([TO + "a.b_c-PORT"], IN),
    "case is kept": ([TO + "Case-PORT"], IN),
    "case counts": ([TO + "case-PORT"], 404),
    "128 letters": ([TO + LONG + "-PORT"], IN),
    "129 letters": ([TO + "x" + LONG + "-PORT"], 400),
    "a digit": ([TO + "9-PORT"], IN),
    "not decoded": ([TO + "b%6Fx-PORT"], 404),
    "unknown": ([TO + "nobody-PORT"], 404),
    "no port": ([TO + "box"], 400),
    "an empty port": ([TO + "box-"], 400),
    "no id": ([TO + "-PORT"], 400),
    "port 0": ([TO + "box-0"], 400),
    "port 65536": ([TO + "box-65536"], 400),
    "port 99999": ([TO + "box-99999"], 400),
    "a long port": ([TO + "box-100000"], 400),
    "a leading zero": ([TO + "box-0PORT"], 400),
    "plus": ([TO + "box-+PORT"], 400),
    "letters": ([TO + "box-http"], 400),
    "a host name": ([TO + "box-PORT.any.domain"], 400),
    "a scheme": ([TO + "http://box-PORT"], 400),
    "a port of a host": ([TO + "box-PORT:80"], 400),
    "a path": ([TO + "box-PORT/"], 400),
    "a list": ([TO + "box-PORT, box-PORT"], 400),
    "a blank within": ([TO + "box- PORT"], 400),
    "blanks around": ([TO + "  box-PORT \t"], IN),
    "quotes": ([TO + '"box-PORT"'], 400),
    "a port that is not listed": ([TO + "strict-PORT"], 404),
    "signed": ([TO + "locked-PORT-EXP-SIG"], IN),
    "signed by the old name": ([OLD + "locked-PORT-EXP-SIG"], IN),
    "signed without need, and wrong": ([TO + "box-PORT-1-00000000z"], IN),
    "signed without need, the token blank": ([TO + "blank-PORT-1-00000000z"], IN),
    "a signature too short": ([TO + "locked-PORT-EXP-0000000a"], 400),
    "a signature too long": ([TO + "locked-PORT-EXP-000000000a"], 400),
    "a signature in capitals": ([TO + "locked-PORT-EXP-ABCDEF00a"], 400),
    "a key's id in capitals": ([TO + "locked-PORT-EXP-00000000A"], 400),
    "an expiry with a leading zero": ([TO + "locked-PORT-0EXP-SIG"], 400),
    "an expiry in capitals": ([TO + "locked-PORT-1ABC-SIG"], 400),
    "an expiry of 14 letters": ([TO + "locked-PORT-" + "1" * 14 + "-SIG"], 400),
    "an empty expiry": ([TO + "locked-PORT--SIG"], 400),
    "an expiry of 13 letters": ([TO + "locked-PORT-" + "1" * 13 + "-00000000a"], 401),
    "a wrong signature": ([TO + "locked-PORT-EXP-00000000a"], 401),
    "a key that is not there": ([TO + "locked-PORT-EXP-00000000z"], 401),
    "no proof": ([TO + "locked-PORT"], 401),
    "unknown before access": ([TO + "nobody-PORT-EXP-00000000a"], 404),
    "not ready before access": ([TO + "sleepy-PORT"], 503),
    "a token": ([TO + "locked-PORT", f"OpenSandbox-Secure-Access: {TOKEN}"], IN),
    "a token and no good signature": ([TO + "locked-PORT-EXP-00000000a", f"OpenSandbox-Secure-Access: {TOKEN}"], IN),
    "a good signature and no good token": ([TO + "locked-PORT-EXP-SIG", "OpenSandbox-Secure-Access: x"], 401),
    "a good signature and an empty token": ([TO + "locked-PORT-EXP-SIG", "OpenSandbox-Secure-Access:"], 401),
    "the token twice": ([TO + "locked-PORT", *[f"OpenSandbox-Secure-Access: {TOKEN}"] * 2], 401),
    "a token twice where none is needed": ([TO + "box-PORT", *["OpenSandbox-Secure-Access: x"] * 2], IN),
    "a token where a blank one is set": ([TO + "blank-PORT", "OpenSandbox-Secure-Access: x"], IN),
    "nobody listens": ([TO + "dead-9"], 502),
}


@pytest.mark.parametrize("name", BY_HEADER)
def test_by_header(gate: Gateway, echoing: Origin, name: str) -> None:
    lines, wanted = BY_HEADER[name]
    assert outcome(ask(gate, echoing.port, IN, *lines)) == wanted


BY_HOST: dict[str, tuple[str, int | str]] = {
    "plain": ("box-PORT.any.domain", IN),
    "with a port": ("box-PORT.any.domain:28888", IN),
    "with an empty port": ("box-PORT.any.domain:", IN),
    "one label": ("box-PORT", IN),
    "case is not kept": ("BOX-PORT.Any.Domain", IN),
    "so an id in capitals is not found": ("Case-PORT.any.domain", 404),
    "an ending dot": ("box-PORT.any.domain.", IN),
    "a hyphen at the end": ("plain--PORT.any.domain", IN),
    "an id with a dot is cut": ("a.b_c-PORT.any.domain", 400),
    "unknown": ("nobody-PORT.any.domain", 404),
    "no route in it": ("www.any.domain", 400),
    "a leading zero": ("box-0PORT.any.domain", 400),
    "port 65536": ("box-65536.any.domain", 400),
    "signed": ("locked-PORT-EXP-SIG.any.domain", IN),
    "signed, in capitals": ("LOCKED-PORT-EXP-SIG.any.domain", IN),
    "a wrong signature": ("locked-PORT-EXP-00000000a.any.domain", 401),
    "a malformed signature": ("locked-PORT-EXP-0000000a.any.domain", 400),
    "no proof": ("locked-PORT.any.domain", 401),
    "not ready": ("sleepy-PORT.any.domain", 503),
    "a blank": ("box-PORT .any.domain", 400),
    "a user": ("user@box-PORT.any.domain", 400),
    "a path": ("box-PORT.any.domain/", 400),
    "a port too large": ("box-PORT.any.domain:65536", 400),
    "a port of letters": ("box-PORT.any.domain:http", 400),
    "an empty label": ("box-PORT..domain", 400),
    "a comma": ("box-PORT.any.domain,other", 400),
    "an address": ("127.0.0.1", 400),
    "an address of version 6": ("[::1]:80", 400),
    "half a bracket": ("[::1", 400),
}


@pytest.mark.parametrize("name", BY_HOST)
def test_by_host(gate: Gateway, echoing: Origin, name: str) -> None:
    host, wanted = BY_HOST[name]
    assert outcome(ask(gate, echoing.port, IN, host=host)) == wanted


def test_the_header_counts_before_the_host_name(gate: Gateway, echoing: Origin) -> None:
    assert outcome(ask(gate, echoing.port, IN, TO + "box-PORT", host="nobody-1.any.domain")) == IN
    assert outcome(ask(gate, echoing.port, IN, TO + "nobody-1", host="box-PORT.any.domain")) == 404
    assert outcome(ask(gate, echoing.port, IN, TO, host="box-PORT.any.domain")) == IN


@pytest.mark.parametrize("host", ["a b", "[::1", "app.test:70000", "user@app.test", "app.test/x", "app_\x7f.test"])
def test_a_malformed_host_is_400_whatever_names_the_sandbox(gate: Gateway, echoing: Origin, host: str) -> None:
    assert outcome(ask(gate, echoing.port, IN, TO + "box-PORT", host=host)) == 400
    assert outcome(ask(gate, echoing.port, "/box/PORT/in", host=host)) == 400


BY_PATH: dict[str, tuple[str, int | str]] = {
    "rest": ("/box/PORT/in/x?y=1", "/in/x?y=1"),
    "nothing left": ("/box/PORT", "/"),
    "a slash left": ("/box/PORT/", "/"),
    "a query left": ("/box/PORT?y=1", "/?y=1"),
    "octets as they are": ("/box/PORT//a/../%2e%2e/%00;x=%2F\\", "//a/../%2e%2e/%00;x=%2F\\"),
    "case is kept": ("/Case/PORT/in", IN),
    "case counts": ("/case/PORT/in", 404),
    "dots and underscores": ("/a.b_c/PORT/in", IN),
    "not decoded": ("/b%6Fx/PORT/in", 404),
    "128 letters": (f"/{LONG}/PORT/in", IN),
    "129 letters": (f"/x{LONG}/PORT/in", 400),
    "a hyphen at the end": ("/plain-/PORT/in", IN),
    "unknown": ("/nobody/PORT/in", 404),
    "port 0": ("/box/0/in", 400),
    "port 65536": ("/box/65536/in", 400),
    "a leading zero": ("/box/0PORT/in", 400),
    "a decoded slash is none": ("/box%2FPORT/in", 400),
    "an empty segment": ("//box/PORT/in", 400),
    "only an id": ("/box", 400),
    "nothing": ("/", 400),
    "signed": ("/locked/PORT/EXP/SIG/in", IN),
    "signed, nothing left": ("/locked/PORT/EXP/SIG", "/"),
    "signed, a query left": ("/locked/PORT/EXP/SIG?y", "/?y"),
    "segments of the path where no access is needed": ("/box/PORT/EXP/SIG/in", "/EXP/SIG/in"),
    "the same with a blank token": ("/blank/PORT/EXP/SIG/in", "/EXP/SIG/in"),
    "a wrong signature": ("/locked/PORT/EXP/00000000a/in", 401),
    "a malformed signature": ("/locked/PORT/EXP/0000000a/in", 401),
    "a signature in capitals": ("/locked/PORT/EXP/ABCDEF00a/in", 401),
    "a malformed expiry": ("/locked/PORT/0EXP/SIG/in", 401),
    "half a signature": ("/locked/PORT/EXP", 401),
    "no proof": ("/locked/PORT/in", 401),
    "not ready": ("/sleepy/PORT/in", 503),
    "a port that is not listed": ("/strict/PORT/in", 404),
}


@pytest.mark.parametrize("name", BY_PATH)
def test_by_path(gate: Gateway, echoing: Origin, name: str) -> None:
    target, wanted = BY_PATH[name]
    if isinstance(wanted, str):
        wanted = wanted.replace("EXP", LATER).replace("SIG", signed("locked", echoing.port))
    assert outcome(ask(gate, echoing.port, target)) == wanted


ABSOLUTE: dict[str, tuple[str, str | None, int | str]] = {
    "agrees": ("http://app.test/in?x", "app.test", "/in?x"),
    "case": ("HTTP://APP.test/in", "app.TEST", IN),
    "the default port left out": ("http://app.test/in", "app.test:80", IN),
    "the default port of https": ("https://app.test:443/in", "app.test", IN),
    "that of the other scheme": ("https://app.test:80/in", "app.test", 400),
    "another port": ("http://app.test:81/in", "app.test", 400),
    "the same port": ("http://app.test:81/in", "app.test:81", IN),
    "another host": ("http://other.test/in", "app.test", 400),
    "nothing left": ("http://app.test", "app.test", "/"),
    "a query left": ("http://app.test?x", "app.test", "/?x"),
    "another scheme": ("ftp://app.test/in", "app.test", 400),
    "no host": ("http:///in", "app.test", 400),
    "a user": ("http://user@app.test/in", "app.test", 400),
    "an empty Host": ("http://app.test/in", "", 400),
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_form(gate: Gateway, echoing: Origin, name: str) -> None:
    target, host, wanted = ABSOLUTE[name]
    assert outcome(ask(gate, echoing.port, target, TO + "box-PORT", host=host)) == wanted


def test_absolute_form_names_sandboxes_too(gate: Gateway, echoing: Origin) -> None:
    assert outcome(ask(gate, echoing.port, "http://app.test/box/PORT/in", host="app.test")) == IN
    assert outcome(ask(gate, echoing.port, "http://box-PORT.test/in", host="box-PORT.test")) == IN
    assert outcome(ask(gate, echoing.port, "http://box-PORT.test/in", host="app.test")) == 400


def test_what_routes_never_reaches_the_sandbox(gate: Gateway, echoing: Origin) -> None:
    mark = echoing.mark()
    lines = [TO + "locked-PORT", OLD + "x-1", f"OpenSandbox-Secure-Access: {TOKEN}", "OpenSandbox-Access-Renew: skip"]
    assert outcome(ask(gate, echoing.port, IN, *lines, "X-Kept: yes")) == IN
    ((_, data),) = echoing.since(mark)
    assert b"X-Kept: yes" in data
    for name in (b"opensandbox", b"open-sandbox", TOKEN.encode()):
        assert name not in data.lower()


@pytest.mark.parametrize("target", ["/status.ok", "/status.ok?x=1"])
def test_status_ok_is_the_gateways_where_no_route_claims_it(gate: Gateway, echoing: Origin, target: str) -> None:
    own = ask(gate, echoing.port, target)
    assert (own.status, own.body) == (200, b"OK")
    assert outcome(ask(gate, echoing.port, target, TO + "box-PORT")) == target
    assert outcome(ask(gate, echoing.port, target, host="box-PORT.any.domain")) == target
    assert outcome(ask(gate, echoing.port, "/box/PORT" + target)) == target
    assert outcome(ask(gate, echoing.port, target, TO + "nobody-PORT")) == 404
    assert ask(gate, echoing.port, "/status.ok/").status == 400


def test_a_refusal_is_json_and_says_who_speaks(gate: Gateway, echoing: Origin) -> None:
    answer = ask(gate, echoing.port, IN, TO + "nobody-PORT")
    assert answer.one("Sallyport-Error") == "unknown_sandbox"
    assert answer.one("Content-Type") == "application/json"
    assert json.loads(answer.body)["error"]["sandbox"] == "nobody"


def test_without_keys_a_signed_route_cannot_be_looked_at(tmp_path: Path, echoing: Origin) -> None:
    """503: known, but nobody can verify; the token is good without keys."""
    with Gateway(tmp_path, sandboxes=SANDBOXES) as gate:
        port = echoing.port
        assert outcome(ask(gate, port, IN, TO + "locked-PORT-EXP-SIG")) == 503
        assert outcome(ask(gate, port, "/locked/PORT/EXP/SIG/in")) == 503
        assert outcome(ask(gate, port, IN, TO + "locked-PORT")) == 401
        assert outcome(ask(gate, port, IN, TO + "locked-PORT-EXP-SIG", f"OpenSandbox-Secure-Access: {TOKEN}")) == IN
        assert outcome(ask(gate, port, IN, TO + "locked-PORT-EXP-SIG", "OpenSandbox-Secure-Access: x")) == 401
        assert outcome(ask(gate, port, IN, TO + "box-PORT-EXP-SIG")) == IN


@pytest.mark.parametrize(("mode", "header", "host", "path"), [
    ("header", IN, IN, 400),
    ("host", 400, IN, 400),
    ("uri", 400, 400, IN),
    ("header+uri", IN, IN, IN),
])  # fmt: skip
def test_each_mode_reads_its_own_places(
    tmp_path: Path, echoing: Origin, mode: str, header: int | str, host: int | str, path: int | str
) -> None:
    with Gateway(tmp_path, "--mode", mode, sandboxes=SANDBOXES) as gate:
        port = echoing.port
        assert outcome(ask(gate, port, IN, TO + "box-PORT")) == header
        assert outcome(ask(gate, port, IN, host="box-PORT.any.domain")) == host
        assert outcome(ask(gate, port, "/box/PORT/in")) == path
        own = ask(gate, port, "/status.ok")
        assert (own.status, own.body) == (200, b"OK")
