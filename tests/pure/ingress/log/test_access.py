"""The access log: what a line says, which requests get one, and what never stands in it."""

from __future__ import annotations

import json
import os
import select
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.verdict import Admission
from ingress.http1.head import RequestHead, read_request
from ingress.routes import Sandbox
from ingress.telemetry.log import Access, Log, mask_target

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "deadbeefk"


class Served:
    """A connection whose answer is over."""

    def __init__(self, target: str = "/box/8080/app?token=t0psecret", prefix: str | None = "/box/8080") -> None:
        lines = ["Host: gateway", "Cookie: t0psecret", "OpenSandbox-Secure-Access: t0psecret", "", ""]
        raw = "\r\n".join([f"GET {target} HTTP/1.1", *lines])
        self.head: RequestHead | None = read_request(raw.encode("latin-1"))
        self.admission: Admission | None = None
        if prefix is not None:
            sandbox = Sandbox("box", "10.0.0.7", token="t0psecret")
            self.admission = Admission(sandbox, 8080, b"/app", prefix.encode(), b"", True, b"")
        self.version = 11
        self.received = 12

    def total_sent(self) -> int:
        return 345


class Journal:
    """An access log into a pipe."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.log = Log(self._write)

    def lines(self) -> list[dict[str, Any]]:
        data = b""
        while select.select([self._read], [], [], 0)[0]:
            data += os.read(self._read, 1 << 20)
        return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        self.log.close()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal()
    yield made
    made.close()


def test_a_line(journal: Journal) -> None:
    access = Access(journal.log)
    access.request(Served(), "192.0.2.1", "", 200, 0.0123456)
    assert journal.lines() == []  # gathered
    access.flush()
    (line,) = journal.lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "msg": "request",
        "client": "192.0.2.1",
        "method": "GET",
        "path": "/box/8080/app",
        "status": 200,
        "sandbox": "box",
        "port": 8080,
        "protocol": "HTTP/1.1",
        "bytes_in": 12,
        "bytes_out": 345,
        "duration_ms": 12.346,
    }
    access.flush()
    assert journal.lines() == []


def test_refusals_tunnels_and_what_was_never_read(journal: Journal) -> None:
    access = Access(journal.log)
    access.request(Served("/nobody/80/", None), "192.0.2.1", "unknown_sandbox", 404, 0.0)
    access.request(Served(), "192.0.2.1", "", 101, 0.0)
    unread = Served()
    unread.head = unread.admission = None
    unread.version = 10
    access.request(unread, "192.0.2.1", "bad_request", 400, 0.0)
    access.flush()
    refused, tunnel, bad = journal.lines()
    assert (refused["code"], refused["path"], "sandbox" in refused) == ("unknown_sandbox", "/nobody/80/", False)
    assert tunnel["protocol"] == "websocket"
    assert (bad["protocol"], "path" in bad, "method" in bad) == ("HTTP/1.0", False, False)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 100), (0.1, 10), (0.25, 25), (0.333, 33), (0.0, 0)])
def test_a_share_is_kept_exactly(journal: Journal, share: float, expected: int) -> None:
    access = Access(journal.log, share)
    for _ in range(100):
        access.request(Served(), "192.0.2.1", "", 200, 0.0)
    access.flush()
    assert abs(len(journal.lines()) - expected) <= (1 if 0 < share < 1 else 0)


def test_the_gateways_own_faults_are_written_whatever_the_share(journal: Journal) -> None:
    access = Access(journal.log, 0.0)
    access.request(Served(), "192.0.2.1", "access_denied", 401, 0.0)
    access.request(Served(), "192.0.2.1", "gateway", 200, 0.0)
    access.request(Served(), "192.0.2.1", "", 500, 0.0)
    access.flush()
    assert [line["status"] for line in journal.lines()] == [401]


def test_a_reader_that_does_not_read_costs_lines_and_nothing_else(journal: Journal) -> None:
    access = Access(journal.log)
    for _ in range(3000):
        access.request(Served(), "192.0.2.1", "", 200, 0.0)
    access.flush()
    written = journal.lines()
    assert journal.log.dropped > 0
    requests = [line for line in written if line["msg"] == "request"]
    assert len(requests) + journal.log.dropped == 3000
    access.request(Served(), "192.0.2.1", "", 200, 0.0)
    access.flush()
    assert [line.get("log.dropped") for line in journal.lines()] == [None, journal.log.dropped]  # it is told, once
    access.request(Served(), "192.0.2.1", "", 200, 0.0)
    access.flush()
    assert len(journal.lines()) == 1


def test_header_values_and_tokens_are_never_written(journal: Journal) -> None:
    access = Access(journal.log)
    access.request(Served(), "192.0.2.1", "", 200, 0.0)
    access.request(Served(prefix=None), "192.0.2.1", "access_denied", 401, 0.0)
    signed = Served(f"/box/8080/1abc/{SECRET}/app?x", f"/box/8080/1abc/{SECRET}")
    access.request(signed, "192.0.2.1", "", 200, 0.0)
    signed.admission = None
    access.request(signed, "192.0.2.1", "access_denied", 401, 0.0)
    access.request(Served(f"/box/8080/.sallyport/enter?e=1abc&s={SECRET}&to=/"), "192.0.2.1", "", 303, 0.0)
    access.flush()
    lines = journal.lines()
    text = json.dumps(lines)
    assert "t0psecret" not in text
    assert SECRET not in text
    assert [line["path"] for line in lines][2:4] == ["/box/8080/1abc/***/app"] * 2


@pytest.mark.parametrize(
    ("target", "prefix", "shown"),
    [
        ("/box/8080/app", "/box/8080", "/box/8080/app"),
        ("/box/8080/app?q=1", "/box/8080", "/box/8080/app?q=1"),
        (f"/box/8080/1abc/{SECRET}/app", f"/box/8080/1abc/{SECRET}", "/box/8080/1abc/***/app"),
        (f"/box/8080/1abc/{SECRET}", f"/box/8080/1abc/{SECRET}", "/box/8080/1abc/***"),
        (f"/box/8080/1abc/{SECRET}?q", f"/box/8080/1abc/{SECRET}", "/box/8080/1abc/***?q"),
        (f"/box/8080/1abc/{SECRET}/app", None, "/box/8080/1abc/***/app"),
        ("/box/8080/1abc/DEADBEEFkx?q", None, "/box/8080/1abc/***?q"),
        (f"/box/8080/1abc/{SECRET}/{SECRET}", f"/box/8080/1abc/{SECRET}", f"/box/8080/1abc/***/{SECRET}"),
        (f"/a/b/c/{SECRET}", "", f"/a/b/c/{SECRET}"),  # a route elsewhere: the path is the application's
        (f"/box/8080/c/{SECRET}", "/box/8080", f"/box/8080/c/{SECRET}"),  # no signature was read there
        ("/box/8080/app/x/y", None, "/box/8080/app/x/y"),
        (f"http://box-80-1abc-{SECRET}.example.com/app", "", "/app"),
        (f"HTTPS://box-80-1abc-{SECRET}.example.com", "", "/"),
        (f"http://box-80-1abc-{SECRET}.example.com?q", None, "/?q"),
        (f"http://gateway/box/80/1abc/{SECRET}/", None, "/box/80/1abc/***/"),
        (f"/.sallyport/enter?e=1&s={SECRET}", None, "/.sallyport/enter"),
        (f"/box/80/.sallyport/enter?e=1&s={SECRET}", None, "/box/80/.sallyport/enter"),
        ("*", None, "*"),
        ("/caf\xc3\xa9", "", "/caf\u00e9"),  # UTF-8, as it was typed
        ("/caf\xe9\x9b", "", "/caf\\xe9\\x9b"),
    ],
)
def test_masks(target: str, prefix: str | None, shown: str) -> None:
    wanted = None if prefix is None else prefix.encode()
    assert mask_target(target.encode("latin-1"), wanted, query=True) == shown
    assert "?" not in mask_target(target.encode("latin-1"), wanted)


@given(st.text(max_size=1000), st.text(max_size=128), st.text(max_size=64), st.integers(0, 1 << 60))
def test_any_request_makes_one_line_of_bounded_length(path: str, sandbox: str, address: str, octets: int) -> None:
    journal = Journal()
    try:
        journal.log.fields["worker"] = 3
        access = Access(journal.log, query=True)
        served = Served()
        assert served.head is not None
        assert served.admission is not None
        served.head.target = path.encode()
        served.admission = served.admission._replace(sandbox=Sandbox(sandbox, ""))
        served.received = octets
        access.request(served, address, "", 200, 1e9)
        access.flush()
        (line,) = journal.lines()
        assert (line["sandbox"], line["client"], line["bytes_in"]) == (sandbox, address, octets)
        assert line["worker"] == 3
    finally:
        journal.close()


@given(st.binary(max_size=100), st.none() | st.binary(max_size=20))
def test_any_target_has_a_form(target: bytes, prefix: bytes | None) -> None:
    assert isinstance(mask_target(target, prefix), str)
