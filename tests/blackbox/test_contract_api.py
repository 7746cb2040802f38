"""The wire contract's HTTP API, policy language and log, at the running sidecar: exact shapes, exact statuses."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from lab.sidecar import TOKEN, TOKEN_HEADER
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab import Lab, Sidecar

RESET = {"status": "ok", "mode": "deny_all", "reason": "policy reset to default deny-all"}


def policy_of(place: Place) -> Any:
    return place.sidecar.api("GET", "/policy").json()["policy"]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_replacing(place: Place, method: str) -> None:
    for body, mode in ((allow("a.example.com"), "enforcing"), (ALLOW_ALL, "allow_all"), (DENY_ALL, "deny_all")):
        answer = place.sidecar.api(method, "/policy", body)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.json() == {"status": "ok", "mode": mode, "enforcementMode": "dns+nft"}
        shown = place.sidecar.api("GET", "/policy").json()
        assert shown == {"status": "ok", "mode": mode, "enforcementMode": "dns+nft", "policy": body}


@pytest.mark.parametrize("body", ["", "null", "{}", " \n\t ", " { } ", " null\n"])
def test_an_empty_body_resets(place: Place, body: str) -> None:
    place.policy(ALLOW_ALL)
    for method in ("POST", "PUT"):
        expected = {**RESET, "enforcementMode": "dns+nft"} if body.strip() else RESET
        assert place.sidecar.api(method, "/policy", body).json() == expected
    assert place.sidecar.api("POST", "/policy").json() == RESET
    shown = place.sidecar.api("GET", "/policy").json()
    assert shown["policy"] == {"defaultAction": "deny", "egress": []}
    assert shown["mode"] == "deny_all"


def test_the_shape_is_the_old_one_without_extensions(place: Place) -> None:
    given = {
        "defaultAction": "DENY",
        "egress": [
            {"action": "Allow", "target": " A.Example.COM. "},
            {"action": "allow", "target": "*.Example.com", "ports": None, "protocol": None, "comment": ""},
            {"action": "deny", "target": "10.0.0.5/8"},
            {"action": "deny", "target": "2001:DB8:0::1"},
            {"action": "allow", "target": "b\u00fccher.example"},
        ],
    }
    place.policy(given)
    assert policy_of(place) == {
        "defaultAction": "deny",
        "egress": [
            {"action": "allow", "target": "a.example.com"},
            {"action": "allow", "target": "*.example.com"},
            {"action": "deny", "target": "10.0.0.0/8"},
            {"action": "deny", "target": "2001:db8::1"},
            {"action": "allow", "target": "xn--bcher-kva.example"},
        ],
    }
    place.policy({"egress": None, "defaultAction": None})
    assert policy_of(place) == DENY_ALL


def test_patch_puts_rules_first_and_replaces_the_same(place: Place) -> None:
    place.allow("a.example.com", "b.example.com", "192.0.2.1/32")
    patch = [
        {"action": "deny", "target": "B.example.com."},
        {"action": "allow", "target": "c.example.com"},
        {"action": "allow", "target": "b.example.com"},  # the first in the patch wins
        {"action": "deny", "target": "192.0.2.1"},
        {"action": "allow", "target": "a.example.com", "ports": [443]},  # another rule: it has ports
    ]
    answer = place.sidecar.api("PATCH", "/policy", patch)
    assert answer.json() == {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"}
    assert policy_of(place)["egress"] == [
        {"action": "deny", "target": "b.example.com"},
        {"action": "allow", "target": "c.example.com"},
        {"action": "deny", "target": "192.0.2.1"},
        {"action": "allow", "target": "a.example.com", "ports": [443]},
        {"action": "allow", "target": "a.example.com"},
    ]
    for same in (["443"], ["443-443"], [443, 443]):
        rule = {"action": "deny", "target": "a.example.com", "ports": same}
        assert place.sidecar.api("PATCH", "/policy", [rule]).status == 200
        assert len(policy_of(place)["egress"]) == 5


def test_delete(place: Place) -> None:
    rules = [
        {"action": "allow", "target": "a.example.com"},
        {"action": "deny", "target": "a.example.com", "ports": [25]},
        {"action": "allow", "target": "b.example.com"},
        {"action": "allow", "target": "c.example.com", "ports": [443], "protocol": "tcp"},
        {"action": "allow", "target": "c.example.com"},
        {"action": "allow", "target": "2001:db8::1"},
    ]
    place.policy({"defaultAction": "deny", "egress": rules})
    answer = place.sidecar.api("DELETE", "/policy", ["nobody.example.com"])
    assert answer.status == 200
    assert answer.json()["reason"] == "no matching targets found"
    assert answer.json()["status"] == "ok"
    assert policy_of(place)["egress"] == rules
    answer = place.sidecar.api("DELETE", "/policy", ["A.EXAMPLE.com.", "2001:DB8:0:0::1/128"])
    assert answer.json() == {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"}
    assert policy_of(place)["egress"] == rules[2:5]
    selector = {"target": "c.example.com", "ports": ["443"], "protocol": "TCP"}
    assert place.sidecar.api("DELETE", "/policy", [selector]).status == 200
    assert policy_of(place)["egress"] == [rules[2], rules[4]]
    assert place.sidecar.api("DELETE", "/policy", ["b.example.com", "c.example.com"]).json()["mode"] == "deny_all"


BAD_BODIES: list[tuple[str, Any, str]] = [
    ("PATCH", [], "$"),
    ("DELETE", [], "$"),
    ("PATCH", {}, "$"),
    ("PATCH", "", "$"),
    ("DELETE", "null", "$"),
    ("DELETE", ["a..b"], "$[0]"),
    ("DELETE", ["ok.example.com", "http://x"], "$[1]"),
    ("DELETE", [{"target": "a.com", "action": "allow"}], "$[0].action"),
    ("DELETE", [7], "$[0]"),
    ("PATCH", [{"target": "a.com"}], "$[0]"),
    ("PATCH", [{"action": "allow"}], "$[0]"),
    ("POST", {"defaultAction": ""}, "$.defaultAction"),
    ("POST", {"defaultAction": "permit"}, "$.defaultAction"),
    ("POST", {"default": None}, "$.default"),
    ("POST", {"egress": {}}, "$.egress"),
    ("POST", {"egress": [None]}, "$.egress[0]"),
    ("POST", {"egress": [{"action": None, "target": "a.com"}]}, "$.egress[0]"),
    ("POST", {"egress": [{"action": "allow", "target": None}]}, "$.egress[0]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "port": None}]}, "$.egress[0].port"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": []}]}, "$.egress[0].ports"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": [0]}]}, "$.egress[0].ports[0]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": [1, 65536]}]}, "$.egress[0].ports[1]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": [443.0]}]}, "$.egress[0].ports[0]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": [True]}]}, "$.egress[0].ports[0]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": ["9-8"]}]}, "$.egress[0].ports[0]"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "ports": 443}]}, "$.egress[0].ports"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "protocol": "icmp"}]}, "$.egress[0].protocol"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "comment": "x" * 201}]}, "$.egress[0].comment"),
    ("POST", {"egress": [{"action": "allow", "target": "a.com", "comment": "a\nb"}]}, "$.egress[0].comment"),
]


@pytest.mark.parametrize(("method", "body", "path"), BAD_BODIES, ids=[f"{m} {b}"[:60] for m, b, _ in BAD_BODIES])
def test_bad_input_names_its_place(place: Place, method: str, body: Any, path: str) -> None:
    place.policy(DENY_ALL)
    answer = place.sidecar.api(method, "/policy", body)
    assert answer.status == 400, answer.text
    assert path in answer.text
    assert policy_of(place) == DENY_ALL


TARGETS_BAD = [
    "", " ", "*.", "*", "a..b", ".a.com", "-a.com", "a-.com", "a.*.com", "a*.com", "**.com", "*.*.com", "*a.com",
    "a.com/",
    "http://a.com", "a.com:443", "a b.com", "a.com\t.b", "a\u3002com", "\uff41.com", "a\u200b.com", "\U0001f600.com",
    "0x7f.1", "2130706433", "010.0.0.1", "1.2.3.4.", "1.2.3", "a.1", "1.2.3.4.5", "x" * 64 + ".com",
    ".".join(["x" * 50] * 6),
    "10.0.0.1/0", "::1/0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "fe80::1%eth0", "::ffff:10.0.0.1/104",
    "::ffff:0:0/96",
    "01.2.3.4", "1.2.3.4/255.0.0.0", "[::1]", "user@a.com", "a_.com..", "\u00a0a.com",
]  # fmt: skip
TARGETS_GOOD = {
    "_dmarc.example.com": "_dmarc.example.com", "localhost": "localhost", "*.com": "*.com",
    "EXAMPLE.COM.": "example.com",
    "  a.com ": "a.com", "fa\u00df.de": "xn--fa-hia.de", "xn--bcher-kva.example": "xn--bcher-kva.example",
    "bu\u0308cher.example": "xn--bcher-kva.example", "*.B\u00fccher.example.": "*.xn--bcher-kva.example",
    "0.0.0.0/0": "0.0.0.0/0", "::/0": "::/0", "10.1.2.3/8": "10.0.0.0/8", "2001:DB8::0:1": "2001:db8::1",
    "192.0.2.1/32": "192.0.2.1", "2001:db8::1/128": "2001:db8::1", "a.b-c.d3": "a.b-c.d3", "3com.com": "3com.com",
}  # fmt: skip


@pytest.mark.parametrize("target", [target for target in TARGETS_BAD if target != "*"])
def test_refused_targets(place: Place, target: str) -> None:
    answer = place.sidecar.api("POST", "/policy", allow(target))
    assert answer.status == 400, (target, answer.text)
    assert "$.egress[0].target" in answer.text


def test_accepted_targets(place: Place) -> None:
    place.allow(*TARGETS_GOOD, "*")
    assert [rule["target"] for rule in policy_of(place)["egress"]] == [*TARGETS_GOOD.values(), "*"]


def test_a_mapped_address_is_judged_as_what_it_is(place: Place) -> None:
    host = place.host()
    answer = place.sidecar.api("POST", "/policy", allow(f"::ffff:{host}"))
    if answer.status == 200:
        assert place.lab.connect(host, 80) == "connected"
        assert policy_of(place)["egress"][0]["target"] == host


def test_extensions_come_back(place: Place) -> None:
    rules = [
        {"action": "allow", "target": "a.com", "ports": [443, "8000-8100"], "protocol": "tcp", "comment": "why \u00e4"},
        {"action": "deny", "target": "*", "ports": [25]},
    ]
    place.policy({"defaultAction": "allow", "egress": rules})
    assert policy_of(place) == {"defaultAction": "allow", "egress": rules}


def test_paths_and_methods(place: Place) -> None:
    api = place.sidecar.api
    for path, allowed in (
        ("/policy", {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}),
        ("/healthz", {"GET", "HEAD"}),
    ):
        for method in ("OPTIONS", "TRACE", "BREW", *({"POST", "DELETE"} - allowed)):
            answer = api(method, path)
            assert answer.status == 405, (method, path)
            assert set(answer.headers["allow"].replace(" ", "").split(",")) >= allowed - {"HEAD"}
    assert api("GET", "/").status == 404
    assert api("GET", "/policy/").status in (200, 404)
    assert api("GET", "/policy?x=1").status == 200
    for path in ("/credential-vault", "/credential-vault/credentials"):
        assert api("GET", path).status == 404
    for token in (None, "wrong", TOKEN):
        answer = api("GET", "/healthz", token=token)
        assert (answer.status, answer.body.strip()) == (200, b"ok")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "outside"])
def test_from_loopback_and_from_outside(place: Place, address: str) -> None:
    where = place.lab.link.sandbox if address == "outside" else address
    assert place.sidecar.api("GET", "/policy", address=where).status == 200
    assert place.sidecar.api("GET", "/policy", token="no", address=where).status == 401
    with place.lab.dial_in(18080) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


def test_several_requests_on_one_connection(place: Place) -> None:
    with place.lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(("127.0.0.1", 18080))
        request = f"GET /policy HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\n\r\n".encode()
        for _ in range(3):
            sock.sendall(request)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        body = json.dumps(allow("chunked.example.com")).encode()
        head = f"PUT /policy HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(head.encode() + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    assert policy_of(place) == allow("chunked.example.com")


# -- what the rules mean ---------------------------------------------------------------------------------------------
def test_name_rules(place: Place) -> None:
    place.policy(
        {
            "defaultAction": "deny",
            "egress": [
                {"action": "deny", "target": "bad.sub.example.org"},
                {"action": "allow", "target": "*.example.org"},
                {"action": "allow", "target": "bad.sub.example.org"},
            ],
        }
    )
    for name in ("a.example.org", "b.a.example.org", "bad.sub.example.org", "example.org", "xexample.org"):
        place.lab.dns.a(name, place.host())
    assert place.ask("a.example.org").addresses
    assert place.ask("B.A.ExAmPlE.oRg").addresses
    assert place.ask("example.org").rcode == "NXDOMAIN"
    assert place.ask("xexample.org").rcode == "NXDOMAIN"
    assert place.ask("bad.sub.example.org").rcode == "NXDOMAIN"


def test_ports_and_protocols_of_name_rules(place: Place) -> None:
    name, host, six = place.name(), place.host(), place.host(6)
    place.policy(
        {
            "defaultAction": "deny",
            "egress": [
                {"action": "deny", "target": "*.example.com", "ports": [25]},
                {"action": "deny", "target": name, "ports": ["8000-8100"], "protocol": "tcp"},
                {"action": "allow", "target": "*.example.com"},
            ],
        }
    )
    place.teach(host, six, name=name)
    for address in (host, six):
        for port, outcome in (
            (25, "closed"),
            (8000, "closed"),
            (8080, "closed"),
            (80, "connected"),
            (9000, "connected"),
        ):
            heard = place.lab.connect(address, port)
            assert heard == outcome or (outcome == "closed" and heard in REJECTED), (address, port)
        assert place.lab.udp(address, 5000) == "connected"
        assert place.lab.ping(address) == "connected"
    place.allow(name, ports=[5000], protocol="udp")
    assert place.lab.udp(host, 5000) == "connected"
    assert place.lab.connect(host, 5000) in REJECTED
    assert place.lab.ping(host) in REJECTED
    place.allow(name, ports=[5000])
    assert place.lab.udp(host, 5000) == place.lab.connect(host, 5000) == "connected"
    assert place.lab.ping(host) in REJECTED
    place.allow(name, protocol="tcp")
    assert place.lab.connect(host, 9000) == "connected"
    assert place.lab.connect(host, 853) in REJECTED
    assert place.lab.udp(host, 5000) in REJECTED


def test_a_name_denied_on_every_port_is_denied(place: Place) -> None:
    name = place.name()
    place.lab.dns.a(name, place.host())
    rules = [
        {"action": "deny", "target": name, "ports": ["1-65535"]},
        {"action": "allow", "target": name, "ports": [80]},
    ]
    place.policy({"defaultAction": "deny", "egress": rules})
    assert place.ask(name).rcode == "NXDOMAIN"


def test_a_port_denied_under_default_allow(place: Place) -> None:
    name, host = place.name(), place.host()
    place.policy({"defaultAction": "allow", "egress": [{"action": "deny", "target": name, "ports": [25]}]})
    assert place.lab.connect(host, 25) == "connected"
    place.teach(host, name=name)
    assert place.lab.connect(host, 25) in REJECTED
    assert place.lab.connect(host, 80) == "connected"


def test_ip_rules_in_order_and_over_learned_addresses(place: Place) -> None:
    host, other = "198.51.104.7", "198.51.104.8"
    name = place.name()
    place.policy(
        {
            "defaultAction": "deny",
            "egress": [
                {"action": "allow", "target": host, "ports": [80]},
                {"action": "deny", "target": "198.51.104.0/24"},
                {"action": "allow", "target": "198.51.104.0/24"},
                {"action": "allow", "target": name},
            ],
        }
    )
    place.lab.dns.a(name, host, other)
    assert place.ask(name).rcode == "NOERROR"
    assert place.lab.connect(host, 80) == "connected"
    assert place.lab.connect(host, 443) in REJECTED
    assert place.lab.connect(other, 80) in REJECTED, "an explicit IP deny beats a learned address"


def test_embedded_forms_of_denied_addresses(place: Place) -> None:
    deny = [{"action": "deny", "target": "198.51.105.0/24"}, {"action": "allow", "target": "::/0"}]
    place.policy({"defaultAction": "deny", "egress": deny})
    for embedded in ("64:ff9b::c633:6901", "2002:c633:6901::1"):
        assert place.lab.connect(embedded, 80) in REJECTED
    assert place.lab.connect("64:ff9b::c633:6a01", 80) == "connected"
    for special in ("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"):
        assert place.lab.connect(special, 80) in REJECTED
    place.policy({"defaultAction": "deny", "egress": deny[::-1]})
    assert place.lab.connect("64:ff9b::c633:6901", 80) == "connected", "at the deny's own place in the order"
    place.allow("198.51.105.0/24")
    assert place.lab.connect("64:ff9b::c633:6901", 80) in REJECTED, "a v4 allow does not hold for them"
    place.allow("64:ff9b::c633:6901")
    assert place.lab.connect("64:ff9b::c633:6901", 80) == "connected"


@pytest.mark.parametrize(
    "metadata", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
)
def test_metadata_opens_only_for_a_narrow_rule(place: Place, metadata: str) -> None:
    broad = "::/0" if ":" in metadata else "0.0.0.0/0"
    wider = "fd00::/8" if ":" in metadata else f"{metadata.split('.', maxsplit=1)[0]}.0.0.0/8"
    for document in (ALLOW_ALL, allow(broad), allow(wider), {**ALLOW_ALL, **allow(broad), "defaultAction": "allow"}):
        place.policy(document)
        assert place.lab.connect(metadata, 80) in REJECTED, document
    place.allow(metadata)
    assert place.lab.connect(metadata, 80) == "connected"


# -- log -------------------------------------------------------------------------------------------------------------
def test_the_log(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(
        policy=allow("api.example.com"), env={"SANDBOX_ID": "sbx-7", "METRICS_EXTRA_ATTRS": "team=blue"}
    )
    (loaded,) = sidecar.events("egress.loaded")
    assert loaded["egress.default"] == "deny"
    assert loaded["rules"] == [{"action": "allow", "target": "api.example.com"}]
    assert loaded["sandbox_id"] == "sbx-7"
    assert loaded["team"] == "blue"
    sidecar.api("POST", "/policy", {**ALLOW_ALL, "egress": [{"action": "deny", "target": "x.example.com"}]})
    (updated,) = soon(lambda: sidecar.events("egress.updated"))
    assert updated["egress.default"] == "allow"
    assert updated["rules"] == [{"action": "deny", "target": "x.example.com"}]
    assert updated["sandbox_id"] == "sbx-7"
    sidecar.api("POST", "/policy", {"egress": 1})
    (failed,) = soon(lambda: sidecar.events("egress.update_failed"))
    assert "$.egress" in failed["error"]
    assert failed["sandbox_id"] == "sbx-7"
    lab.query("x.example.com")

    def denied() -> list[dict[str, Any]]:
        return [e for e in sidecar.events("egress.outbound") if e.get("target.host") == "x.example.com"]

    assert soon(denied)[0]["sandbox_id"] == "sbx-7"
    for line in sidecar.log.splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("mode", ["dns+nft", "dns"])
def test_the_log_tells_of_names_that_were_answered_and_of_names_that_were_not(
    lab: Lab, start_sidecar: Callable[..., Sidecar], mode: str
) -> None:
    addresses = ["198.51.100.10", "198.51.100.20", "10.99.0.10"]
    lab.dns.a("api.example.com", *addresses)
    lab.dns.behave("broken.example.com", rcode="SERVFAIL")
    sidecar = start_sidecar(policy=allow("*.example.com"), env={"MODE": mode})
    assert len(lab.query("api.example.com").addresses) == 2
    assert lab.query("broken.example.com").rcode == "SERVFAIL"

    def told(host: str) -> list[dict[str, Any]]:
        return [event for event in sidecar.events("egress.outbound") if event.get("target.host") == host]

    (answered,) = soon(lambda: told("api.example.com"))
    assert (answered["action"], sorted(answered["target.ips"])) == ("allow", addresses[:2])
    assert "error" not in answered
    (broken,) = soon(lambda: told("broken.example.com"))
    assert (broken["action"], broken["target.ips"]) == ("allow", [])
    assert "the resolver answered with rcode 2" in broken["error"]


def test_log_levels(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(policy=allow("api.example.com"), env={"LOG_LEVEL": "error"})
    lab.query("denied.example.com")
    sidecar.api("POST", "/policy", DENY_ALL)
    assert not [event for event in sidecar.events() if event["level"] in ("debug", "info", "warn")]
