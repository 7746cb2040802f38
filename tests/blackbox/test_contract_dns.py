"""The wire contract's and the fine points' DNS and leases, line by line, at the running sidecar."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from lab import rdata
from lab.client import NoReply
from lab.reply import Reply, build_query
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab import Lab, Sidecar

USEFUL = [
    "A",
    "AAAA",
    "CNAME",
    "NS",
    "SOA",
    "PTR",
    "MX",
    "TXT",
    "SRV",
    "SVCB",
    "HTTPS",
    "CAA",
    "TLSA",
    "SSHFP",
    "NAPTR",
]


def ask_raw(place: Place, message: bytes, **more: Any) -> Reply:
    return Reply(place.lab.client.query_raw(message, **more))


def test_a_denied_name(place: Place) -> None:
    place.policy(
        {"defaultAction": "deny", "egress": [{"action": "deny", "target": "*.no.example.com", "comment": "why"}]}
    )
    name = place.name("no.example.com")
    for tcp in (False, True):
        reply = place.ask(name.upper(), tcp=tcp)
        assert reply.rcode == "NXDOMAIN"
        assert reply.negative_ttl is not None
        assert 1 <= reply.negative_ttl <= 10
        assert reply.ede is not None
        assert reply.ede[0] == 15
        assert name in reply.ede[1]
        assert "*.no.example.com" in reply.ede[1]
        assert str(reply.record.q.qname) == name.upper() + ".", "the question comes back in its own case"
    reply = place.ask(name, edns=None)
    assert reply.rcode == "NXDOMAIN"
    assert not reply.edns
    assert not place.lab.dns.queries(name)
    by_default = place.ask("x.example.net")
    assert by_default.ede is not None
    assert by_default.ede[0] == 15


@pytest.mark.parametrize("rtype", USEFUL)
def test_useful_types_are_asked(place: Place, rtype: str) -> None:
    name = place.name()
    place.allow(name)
    place.lab.dns.forget()
    assert place.ask(name, rtype).rcode in ("NOERROR", "NXDOMAIN")
    # Twice where the lab's server took its time.
    assert {query.qtype for query in place.lab.dns.queries(name)} == {rdata.type_name(rdata.type_number(rtype))}
    assert place.ask(place.name(), rtype).rcode == "NXDOMAIN"


def test_records_are_passed_on(place: Place) -> None:
    name = place.name()
    place.allow(name)
    place.lab.dns.txt(name, "v=spf1", "x" * 255)
    place.lab.dns.add(name, "MX", rdata.mx(10, "mail.example.com"))
    place.lab.dns.add(name, "SRV", rdata.srv(1, 2, 443, "srv.example.com"))
    place.lab.dns.add(name, "CAA", b"\0\5issueca.example")
    assert place.ask(name, "MX").answers == [(name, "MX", place.ask(name, "MX").ttls[0], "10 mail.example.com.")]
    assert "srv.example.com" in place.ask(name, "SRV").answers[0][3]
    assert b"v=spf1" in place.ask(name, "TXT").raw
    assert b"ca.example" in place.ask(name, "CAA").raw


def test_malformed_questions(place: Place) -> None:
    place.allow("ok.example.com")
    question = rdata.encode_name("ok.example.com") + struct.pack(">HH", 1, 1)
    opt = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + b"\1\2\3\4"

    def head(flags: int = 0x0100, *counts: int) -> bytes:
        return struct.pack(">6H", 7, flags, *(counts or (1, 0, 0, 0)))

    cases = [
        (head(0x0100 | 5 << 11) + question, "NOTIMP"),
        (head(0x0100 | 4 << 11) + question, "NOTIMP"),
        (head(0x0100 | 1 << 11, 0, 0, 0, 0), "NOTIMP"),
        (head(0x0100, 0, 0, 0, 0), "FORMERR"),
        (head(0x0100, 2, 0, 0, 0) + question * 2, "FORMERR"),
        (head(0x0100, 1, 1, 0, 0) + question + record, "FORMERR"),
        (head(0x0100, 1, 0, 1, 0) + question + record, "FORMERR"),
        (head(0x0100, 1, 0, 0, 1) + question + record, "FORMERR"),
        (head(0x0100, 1, 0, 0, 2) + question + opt + opt, "FORMERR"),
        (head() + question[:-2], "FORMERR"),
        (head() + b"\xc0\x0c" + question[-4:], "FORMERR"),
        (head() + question[:-2] + struct.pack(">H", 3), "REFUSED"),  # CH
        (head() + question[:-2] + struct.pack(">H", 255), "REFUSED"),  # ANY
    ]
    for message, rcode in cases:
        for tcp in (False, True):
            assert ask_raw(place, message, tcp=tcp).rcode == rcode, (message.hex(), tcp)
    for odd in (0x8180, 0x8100 | 5 << 11):
        with pytest.raises(NoReply):
            place.lab.client.query_raw(head(odd) + question, timeout=0.2)
    assert ask_raw(place, head(0x01F0 & ~0x0080) + question).rcode == "NXDOMAIN"  # other flags are ignored


def test_odd_query_names(place: Place) -> None:
    place.policy({"defaultAction": "allow", "egress": [{"action": "allow", "target": "*"}]})
    for label in ("a b", "a;b", "a/b", "\xff\xfe", "a\0b", "a@b", "*", "(x)"):
        message = struct.pack(">6H", 9, 0x0100, 1, 0, 0, 0)
        message += (
            bytes([len(label)]) + label.encode("latin-1") + rdata.encode_name("example.com") + struct.pack(">HH", 1, 1)
        )
        assert place.lab.client.query_raw(message)[3] & 15 in (3, 5), label
    host = place.host()
    for owner in ("-x.example.com", "x-.example.com", "_x.example.com", "x_y.example.com"):
        place.lab.dns.a(owner, host)
        assert place.ask(owner).addresses == [host], owner


def test_the_star_does_not_match_the_root(place: Place) -> None:
    place.allow("*")
    assert place.ask("", "NS").rcode == "NXDOMAIN"
    assert place.ask("com", "NS").rcode in ("NOERROR", "NXDOMAIN")
    assert place.lab.dns.queries("com")


def test_large_answers_are_truncated_and_whole_over_tcp(place: Place) -> None:
    name = place.name()
    hosts = [place.host() for _ in range(60)]
    place.allow(name)
    place.lab.dns.a(name, *hosts)
    for edns, most in ((None, 512), (600, 600), (4096, 1232), (1232, 1232), (100, 512)):
        message = build_query(name, "A", 5, edns)
        answer = place.lab.client.query_raw(message)
        assert len(answer) <= most
        if most < 60 * 16:
            assert Reply(answer).truncated
            assert not Reply(answer).answers
    assert sorted(place.ask(name, tcp=True).addresses) == sorted(hosts)
    assert place.lab.connect(hosts[-1], 80) == "connected"


@pytest.mark.parametrize("server", ["8.8.8.8", "2001:4860:4860::8888"])
def test_an_answer_that_takes_its_time_is_heard(place: Place, server: str) -> None:
    """The client asks once. The question was redirected, and the answer needs what the kernel remembers of that."""
    name, host = place.name(), place.host()
    place.allow(name)
    place.lab.dns.a(name, host)
    place.lab.dns.behave(name, delay=2.5)  # half of the time that a resolver has
    assert place.ask(name, server=server).addresses == [host]


def test_several_questions_on_one_tcp_connection(place: Place) -> None:
    name, host = place.name(), place.host()
    place.allow(name)
    place.lab.dns.a(name, host)
    with place.lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(("8.8.8.8", 53))
        pieces = b"".join(
            struct.pack(">H", len(message)) + message
            for message in (build_query(name if n % 2 else "no.example.net", "A", n) for n in range(6))
        )
        for at in range(0, len(pieces), 7):
            sock.send(pieces[at : at + 7])
        seen: dict[int, int] = {}
        stream = sock.makefile("rb")
        for _ in range(6):
            (length,) = struct.unpack(">H", stream.read(2))
            reply = Reply(stream.read(length))
            seen[reply.record.header.id] = len(reply.addresses)
        stream.close()
    assert seen == {n: n % 2 for n in range(6)}


def test_the_cache_honours_ttls_and_counts_down(place: Place) -> None:
    """Once asked, the resolver has another answer: it is heard when the time of the first is over, and not before."""
    name, host, other, ttl = place.name(), place.host(), place.host(), 4
    place.allow(name)
    place.lab.dns.a(name, host, ttl=ttl)
    assert place.ask(name).ttls == [ttl]
    since = time.monotonic()
    place.lab.dns.remove(name)
    place.lab.dns.a(name, other, ttl=ttl)
    age, left = 0.0, []
    while (reply := place.ask(name)).addresses == [host]:
        assert age <= ttl
        assert reply.ttls[0] <= ttl - age + 1
        left += reply.ttls
        time.sleep(0.1)
        age = time.monotonic() - since
    assert left == sorted(left, reverse=True)
    assert left[-1] < ttl
    assert (reply.addresses, reply.ttls) == ([other], [ttl])
    missing = place.name()
    place.allow(missing)
    first = place.ask(missing)
    assert first.rcode == "NXDOMAIN"
    assert first.ede is None
    assert first.negative_ttl is not None
    place.lab.dns.a(missing, host)
    assert place.ask(missing).rcode == "NXDOMAIN"


def test_mixed_case_questions(place: Place) -> None:
    """0x20: the client's case comes back, whatever the cache was filled with."""
    name, host = place.name("example.com"), place.host()
    place.allow(name)
    place.lab.dns.a(name, host)
    for spelling in (name, name.upper(), name.title()):
        reply = place.ask(spelling)
        assert reply.addresses == [host]
        assert str(reply.record.q.qname).rstrip(".") == spelling


# -- leases ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ttl", "least"), [(0, 120), (1, 120), (60, 120), (300, 360), (3600, 3660)])
def test_the_lease_is_the_ttl_or_a_minute_and_a_minute_more(place: Place, ttl: int, least: int) -> None:
    for family in (4, 6):
        host, name = place.host(family), place.name()
        place.allow(name)
        place.teach(host, name=name, ttl=ttl)
        lease = place.lease(host)
        assert lease is not None
        assert least - 5 <= lease <= least + 2
        assert place.lab.connect(host, 80) == "connected"
        reply = place.ask(name, "AAAA" if family == 6 else "A")
        assert reply.ttls[0] <= ttl
        assert reply.ttls[0] < lease


def test_an_address_of_two_names_lives_as_long_as_the_longer(place: Place) -> None:
    host, one, two = place.host(), place.name(), place.name()
    place.allow(one, two)
    place.teach(host, name=one, ttl=600)
    place.teach(host, name=two, ttl=5)
    lease = place.lease(host)
    assert lease is not None
    assert lease > 600
    place.allow(two)
    lease = place.lease(host)
    assert lease is not None
    assert lease <= 122
    place.policy(DENY_ALL)
    assert place.lease(host) is None
    place.allow(one)
    assert place.lab.connect(host, 80) in REJECTED, "what a policy took away doesn't come back by itself"


def test_a_renewal_loses_no_packet(place: Place) -> None:
    host, name = place.host(), place.name()
    place.allow(name)
    place.teach(host, name=name, ttl=0)
    stop, trouble = threading.Event(), []

    def renew() -> None:
        while not stop.is_set():
            place.ask(name)

    thread = threading.Thread(target=renew)
    thread.start()
    for _ in range(150):
        if place.lab.connect(host, 80) != "connected":
            trouble.append("tcp")
        if place.lab.udp(host, 5000) != "connected":
            trouble.append("udp")
    stop.set()
    thread.join()
    assert not trouble


def test_learned_addresses_that_are_still_allowed_are_kept(place: Place) -> None:
    host, name = place.host(), place.name()
    place.allow(name)
    place.teach(host, name=name, ttl=600)
    before = place.lease(host)
    place.lab.dns.forget()
    for document in (allow(f"*.{name.partition('.')[2]}"), allow("*"), allow(name, ports=[80]), allow(name)):
        place.policy(document)
        after = place.lease(host)
        assert before is not None
        assert after is not None
        assert before - 10 <= after <= before
    assert place.lab.connect(host, 80) == "connected"
    assert not place.lab.dns.queries(name)


# -- search lists, webhook -------------------------------------------------------------------------------------------
class Hook:
    """A web server in the internet namespace that takes denials."""

    def __init__(self, lab: Lab, address: str, port: int = 9191) -> None:
        self.heard: list[tuple[float, dict[str, str], Any]] = []
        self.statuses: list[int] = []
        heard, statuses = self.heard, self.statuses

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                heard.append((time.monotonic(), {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(statuses.pop(0) if statuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with lab.internet.namespace.entered():
            self.server = HTTPServer(("0.0.0.0", port), Handler)
        self.url = f"http://{address}:{port}/denied?x=1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hook(lab: Lab) -> Iterator[Hook]:
    made = Hook(lab, "198.51.100.70")
    yield made
    made.close()


def test_the_deny_webhook(lab: Lab, hook: Hook, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(policy=allow("ok.example.com"), env={"DENY_WEBHOOK": hook.url, "SANDBOX_ID": "sbx-9"})
    assert lab.query("Evil.Example.org").rcode == "NXDOMAIN"
    assert soon(lambda: hook.heard)
    _, headers, body = hook.heard[0]
    document = json.loads(body)
    assert set(document) == {"hostname", "timestamp", "source", "sandboxId"}
    assert document["hostname"] == "evil.example.org"
    assert document["source"] == "opensandbox-egress"
    assert document["sandboxId"] == "sbx-9"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", document["timestamp"])
    assert headers["content-type"].startswith("application/json")
    assert lab.connect("198.51.100.70", 9191) in REJECTED, "the endpoint earns the sandbox nothing"


def test_the_webhook_is_tried_again_on_5xx_and_not_on_4xx(
    lab: Lab, hook: Hook, start_sidecar: Callable[..., Sidecar]
) -> None:
    hook.statuses[:] = [500, 503, 200, 404]
    start_sidecar(policy=DENY_ALL, env={"DENY_WEBHOOK": hook.url})
    lab.query("one.example.org")
    assert soon(lambda: len(hook.heard) >= 3)
    lab.query("two.example.org")
    assert soon(lambda: len(hook.heard) >= 4)
    time.sleep(1.0)
    assert [b"one" in body for _, _, body in hook.heard] == [True, True, True, False]


def test_the_webhook_by_name_needs_no_rule_and_opens_none(
    lab: Lab, hook: Hook, start_sidecar: Callable[..., Sidecar]
) -> None:
    lab.dns.a("hooks.example.net", "198.51.100.71")
    start_sidecar(policy=DENY_ALL, env={"DENY_WEBHOOK": "http://hooks.example.net:9191/"})
    lab.query("one.example.org")
    assert soon(lambda: hook.heard)
    assert lab.query("hooks.example.net").rcode == "NXDOMAIN"
    assert lab.connect("198.51.100.71", 9191) in REJECTED
    assert lab.connect("198.51.100.71", 80) in REJECTED


def test_search_expansions_are_counted_apart(lab: Lab, hook: Hook, start_sidecar: Callable[..., Sidecar]) -> None:
    """ndots:5 makes denials of one allowed look-up; they reach neither the webhook nor the log of denials."""
    resolv = (
        "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 203.0.113.53\noptions ndots:5\n"
    )
    sidecar = start_sidecar(policy=allow("api.example.com"), env={"DENY_WEBHOOK": hook.url}, resolv_conf=resolv)
    lab.dns.a("api.example.com", "198.51.100.10")
    for suffix in ("default.svc.cluster.local", "svc.cluster.local", "cluster.local"):
        assert lab.query(f"api.example.com.{suffix}").rcode == "NXDOMAIN"
    assert lab.query("api.example.com").addresses
    lab.query("real.example.org")
    assert soon(lambda: hook.heard)
    time.sleep(0.3)
    assert [b"real.example.org" in body for _, _, body in hook.heard] == [True]
    assert "cluster.local" not in sidecar.log


def test_a_flood_of_denials_is_bounded(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    """A hook that never answers, and more denials than its queue holds: DNS goes on, drops are counted."""
    sidecar = start_sidecar(policy=allow("ok.example.com"), env={"DENY_WEBHOOK": "http://198.51.100.72:81/"})
    lab.dns.a("ok.example.com", "198.51.100.10")
    sock = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(600):
        sock.sendto(build_query(f"n{number}.example.org", "A", number), ("203.0.113.53", 53))
    sock.close()
    assert lab.query("ok.example.com").addresses == ["198.51.100.10"]
    assert sidecar.api("GET", "/healthz").status == 200
    assert sidecar.api("POST", "/policy", ALLOW_ALL).status == 200
