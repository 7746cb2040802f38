"""The wire contract's environment, line by line: what each variable does, and what is said when it can't be read."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab import Lab, LabError, Sidecar
from lab.client import NoReply
from lab.identity import SIDECAR_WITH_RAW
from lab.reply import Reply, build_query
from lab.sidecar import TOKEN
from tests.blackbox.place import DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lab import Internet

API = "198.51.100.10"


def refused(lab: Lab, env: Mapping[str, str | None], **more: Any) -> str:
    """Start with this environment; it must end with 2 and one line, locked. The line."""
    with Sidecar(lab, env=env, wait=False, **more) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2, sidecar.log
        lines = sidecar.log.strip().splitlines()
        assert len(lines) == 1, sidecar.log
        assert lab.connect(API, 80) in REJECTED, "the lock-down stays"
        lab.unguard()
        return lines[0]


BAD = [
    ("MODE", "nft"), ("MODE", "dns+xyz"), ("MODE", "dns,nft"), ("MODE", "off"),
    ("RULES", "{"), ("RULES", "[]"), ("RULES", '{"defaultAction":"maybe"}'),
    ("RULES", '{"egress":[{"action":"allow","target":"a.com"}],"x":null}'),
    ("HTTP_ADDR", "nonsense"), ("HTTP_ADDR", ":0"), ("HTTP_ADDR", ":70000"), ("HTTP_ADDR", "example.com:80"),
    ("HTTP_ADDR", "18080"), ("HTTP_ADDR", "::1:18080"),
    ("TOKEN", "line\nbreak"), ("TOKEN", "umlaut-\u00e4"),
    ("REQUIRE", "magic"), ("REQUIRE", "nft,magic"), ("REQUIRE", "nft;raw"),
    ("MAX_RULES", "-1"), ("MAX_RULES", "many"), ("MAX_RULES", "1.5"), ("MAX_RULES", "0x10"),
    ("LOG_LEVEL", "loud"), ("LOG_LEVEL", "9"),
    ("DNS_UPSTREAM", "resolver.example.com"), ("DNS_UPSTREAM", "1.2.3.4:99999"), ("DNS_UPSTREAM", "1.2.3"),
    ("DNS_UPSTREAM", "203.0.113.53,oops"), ("DNS_UPSTREAM", "[::1"), ("DNS_UPSTREAM", ","),
    ("DNS_UPSTREAM_TIMEOUT", "0"), ("DNS_UPSTREAM_TIMEOUT", "121"), ("DNS_UPSTREAM_TIMEOUT", "5s"),
    ("DNS_UPSTREAM_PROBE", "not a name"), ("DNS_UPSTREAM_PROBE", "a..b"),
    ("DNS_UPSTREAM_PROBE_INTERVAL_SEC", "0"), ("DNS_UPSTREAM_PROBE_INTERVAL_SEC", "3601"),
    ("NAMESERVER_EXEMPT", "ns.example.com"), ("NAMESERVER_EXEMPT", "1.2.3.4:53"), ("NAMESERVER_EXEMPT", "10.0.0.0/8"),
    ("BLOCK_DOH_443", "perhaps"), ("DOH_BLOCKLIST", "dns.google"), ("DOH_BLOCKLIST", "8.8.8.8/33"),
    ("DENY_WEBHOOK", "hook"), ("DENY_WEBHOOK", "ftp://example.com/"), ("DENY_WEBHOOK", "http://"),
    ("METRICS_EXTRA_ATTRS", "novalue"), ("METRICS_EXTRA_ATTRS", "=x"),
    ("ALWAYS_ALLOW", "a..b"), ("ALWAYS_ALLOW", "http://a.com"), ("ALWAYS_ALLOW", "a.com:99999"),
    ("ALWAYS_DENY", "a b.com"),
    ("MITMPROXY_TRANSPARENT", "true"), ("MITMPROXY_PORT", "18081"), ("MITMPROXY_SCRIPT", "/x.py"),
    ("CREDENTIAL_VAULT_REQUIRE_TLS", "true"), ("CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS", "10.0.0.0/8"),
    ("UPSTREAM_PROXY", "http://proxy.example.com:3128"), ("UPSTREAM_PROXY_AUTH", "user:secret"),
    ("POLICY_FILE", "/opt/opensandbox/policy.json"), ("POLICY_FILE", "/nowhere/at/all/policy.json"),
    ("SOCKET", "/opt/opensandbox/control.sock"), ("SOCKET", "/proc/two\nlines"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value[:24]!r}" for name, value in BAD])
def test_a_bad_variable_is_named_in_one_line(lab: Lab, name: str, value: str) -> None:
    line = refused(lab, {name: value})
    assert f"OPENSANDBOX_EGRESS_{name}" in line
    assert "secret" not in line


def test_require(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    line = refused(lab, {"REQUIRE": "nft,token", "TOKEN": None})
    assert "OPENSANDBOX_EGRESS_TOKEN" in line
    for one in ("nft", "raw"):
        assert "OPENSANDBOX_EGRESS_REQUIRE" in refused(lab, {"REQUIRE": one, "MODE": "dns"})
    start_sidecar(env={"REQUIRE": "nft, raw,TOKEN"}, identity=SIDECAR_WITH_RAW)


def test_good_values_in_every_spelling(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(
        env={
            "MODE": "NFT+Dns",
            "HTTP_ADDR": "[::1]:19000",
            "MAX_RULES": "0",
            "SANDBOX_ID": "sbx-1",
            "LOG_LEVEL": "WARN",
            "DNS_UPSTREAM": "[2001:db8:113::53]:53, 203.0.113.53",
            "DNS_UPSTREAM_TIMEOUT": "120",
            "DNS_UPSTREAM_PROBE": ".",
            "DNS_UPSTREAM_PROBE_INTERVAL_SEC": "3600",
            "BLOCK_DOH_443": "",
            "METRICS_EXTRA_ATTRS": "team=blue, zone=a",
            "MITMPROXY_TRANSPARENT": "false",
            "CREDENTIAL_VAULT_REQUIRE_TLS": "",
        },
        policy=allow("api.example.com"),
        wait=False,
    )
    assert soon(lambda: healthy(sidecar, "::1", 19000))
    document = sidecar.api("GET", "/policy", address="::1", port=19000).json()
    assert document["enforcementMode"] == "dns+nft"
    lab.dns.a("api.example.com", API)
    assert lab.query("api.example.com").addresses == [API]


def healthy(sidecar: Sidecar, address: str, port: int = 18080) -> bool:
    try:
        return sidecar.api("GET", "/healthz", token=None, address=address, port=port).status == 200
    except OSError:
        return False


def test_no_resolver_at_all(lab: Lab) -> None:
    line = refused(lab, {"DNS_UPSTREAM": None}, resolv_conf="nameserver 127.0.0.11\noptions ndots:0\n")
    assert "OPENSANDBOX_EGRESS_DNS_UPSTREAM" in line
    assert "127.0.0.11" in line
    assert "OPENSANDBOX_EGRESS_DNS_UPSTREAM" in refused(lab, {"DNS_UPSTREAM": None}, resolv_conf="")


def test_the_resolver_of_resolv_conf(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(
        env={"DNS_UPSTREAM": None},
        policy=allow("api.example.com"),
        resolv_conf="search x.example\nnameserver 198.51.100.53\n",
    )
    lab.dns.a("api.example.com", API)
    assert lab.query("api.example.com").addresses == [API]
    assert {query.server for query in lab.dns.queries("api.example.com")} == {"198.51.100.53"}


def test_mode_dns(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    """Names only: DNS is intercepted, 53 and 853 are closed, no other packet is filtered; IP rules are reported."""
    policy = {
        "defaultAction": "deny",
        "egress": [
            {"action": "allow", "target": "api.example.com"},
            {"action": "deny", "target": "198.51.100.0/24"},
        ],
    }
    sidecar = start_sidecar(env={"MODE": "dns"}, policy=policy)
    lab.dns.a("api.example.com", API)
    lab.dns.a("other.example.com", API)
    for server in ("203.0.113.53", "8.8.8.8", "2001:4860:4860::8888", "127.0.0.11"):
        for tcp in (False, True):
            assert lab.query("api.example.com", server=server, tcp=tcp).addresses == [API]
            assert lab.query("other.example.com", server=server, tcp=tcp).rcode == "NXDOMAIN"
    assert not lab.dns.queries("other.example.com")
    for host in (API, "203.0.113.77", "2001:db8:100::10"):
        assert lab.connect(host, 80) == "connected"
        assert lab.udp(host, 5000) == "connected"
        assert lab.connect(host, 853) in REJECTED
        assert lab.udp(host, 853) in REJECTED
    assert lab.ping(API) == "connected"
    document = sidecar.api("GET", "/policy").json()
    assert document["enforcementMode"] == "dns"
    assert document["policy"]["egress"][1] == {"action": "deny", "target": "198.51.100.0/24"}
    assert "198.51.100.0/24" in json.dumps({key: value for key, value in document.items() if key != "policy"})
    assert any("MODE" in json.dumps(event) and event.get("level") == "warn" for event in sidecar.events())
    answer = sidecar.api("POST", "/policy", allow("x.example.com")).json()
    assert (answer["status"], answer["mode"], answer["enforcementMode"]) == ("ok", "enforcing", "dns")


def test_the_token(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(env={"TOKEN": "a token with spaces"})
    assert sidecar.api("GET", "/policy", token="a token with spaces").status == 200
    for token in ("a token with space", "a token with spacesx", "A token with spaces", TOKEN, None):
        assert sidecar.api("GET", "/policy", token=token).status == 401
        assert sidecar.api("GET", "/healthz", token=token).status == 200
    twice = b"GET /policy HTTP/1.1\r\nHost: x\r\n" + 2 * b"OPENSANDBOX-EGRESS-AUTH: a token with spaces\r\n" + b"\r\n"
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.connect(("127.0.0.1", 18080))
        sock.sendall(twice)
        assert sock.recv(100).split()[1] == b"401"
    assert (
        sidecar.api("GET", "/policy", token=None, headers={"opensandbox-egress-auth": "a token with spaces"}).status
        == 200
    )


def test_the_unix_socket(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(env={"TOKEN": None, "SOCKET": "/run/own/control.sock"})
    path = sidecar.run / "own" / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    body = json.dumps(allow("unix.example.com")).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))
        request = f"POST /policy HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(request.encode() + body)
        answer = b""
        while part := sock.recv(4096):
            answer += part
    assert answer.split()[1] == b"200"
    assert sidecar.api("GET", "/policy", token=None).json()["policy"] == allow("unix.example.com")


def test_a_file_in_the_unix_sockets_place_is_left_there(lab: Lab) -> None:
    """A slip of the operator's must not cost them their policy."""
    sidecar = Sidecar(lab, env={"SOCKET": "/var/egress/policy.json"}, wait=False)
    place = sidecar.state / "policy.json"
    place.write_text("{}")
    with sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        assert sidecar.log == (
            "egress: OPENSANDBOX_EGRESS_SOCKET: /var/egress/policy.json: is there already, and no socket\n"
        )
        assert place.read_text() == "{}"


def test_max_rules(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(env={"MAX_RULES": "3"})
    three, four = [allow(*(f"n{n}.example.com" for n in range(count))) for count in (3, 4)]
    for method in ("POST", "PUT"):
        assert sidecar.api(method, "/policy", four).status == 413
        assert sidecar.api(method, "/policy", three).status == 200
    assert sidecar.api("PATCH", "/policy", [{"action": "allow", "target": "one.more.example.com"}]).status == 413
    assert (
        sidecar.api("PATCH", "/policy", [{"action": "deny", "target": "n1.example.com", "ports": [25]}]).status == 413
    )
    assert sidecar.api("PATCH", "/policy", [{"action": "allow", "target": "n1.example.com"}]).status == 200
    assert len(sidecar.api("GET", "/policy").json()["policy"]["egress"]) == 3
    assert sidecar.api("DELETE", "/policy", ["n1.example.com"]).status == 200


def test_the_default_cap_is_4096(internet: Internet) -> None:
    with Place(internet) as place:
        many = allow(*(f"n{n}.example.com" for n in range(4097)))
        assert place.sidecar.api("POST", "/policy", many).status == 413
        many["egress"].pop()
        assert place.sidecar.api("POST", "/policy", many).status == 200
        assert len(place.sidecar.api("GET", "/policy").json()["policy"]["egress"]) == 4096


def test_upstreams_fail_over_and_time_out(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(
        env={"DNS_UPSTREAM": "203.0.113.53,198.51.100.53:53", "DNS_UPSTREAM_TIMEOUT": "1"},
        policy=allow("*.example.com"),
    )
    lab.dns.a("ok.example.com", API)
    lab.dns.behave("ok.example.com", drop=True, times=1)
    assert lab.query("ok.example.com").addresses == [API]
    assert {query.server for query in lab.dns.queries("ok.example.com")} == {"203.0.113.53", "198.51.100.53"}
    lab.dns.behave("never.example.com", drop=True)
    begun = time.monotonic()
    reply = lab.query("never.example.com")
    assert reply.rcode == "SERVFAIL"
    assert 0.8 < time.monotonic() - begun < 5  # the time-out is one second, its default five


def test_the_probe(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(env={"DNS_UPSTREAM_PROBE": "probe.example.org", "DNS_UPSTREAM_PROBE_INTERVAL_SEC": "1"})
    assert len(lab.dns.wait_for("probe.example.org", 2)) >= 2


def test_the_probe_asks_the_root_for_its_servers(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(env={"DNS_UPSTREAM_PROBE_INTERVAL_SEC": "1"})
    assert soon(lambda: lab.dns.queries("", "NS"))


def test_nameserver_exempt(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    """That address, that port only, both transports, both families."""
    start_sidecar(env={"NAMESERVER_EXEMPT": "8.8.8.8,2001:4860:4860::8888"}, policy=allow("api.example.com"))
    lab.dns.a("free.example.org", "192.0.2.1")
    for server in ("8.8.8.8", "2001:4860:4860::8888"):
        for tcp in (False, True):
            assert lab.query("free.example.org", server=server, tcp=tcp).addresses == ["192.0.2.1"]
        assert lab.connect(server, 443) in REJECTED
        assert lab.connect(server, 853) in REJECTED
        assert lab.udp(server, 443) in REJECTED
    assert {query.server for query in lab.dns.queries("free.example.org")} == {"8.8.8.8", "2001:4860:4860::8888"}
    assert lab.query("free.example.org", server="8.8.4.4").rcode == "NXDOMAIN"
    assert lab.connect("192.0.2.1", 80) in REJECTED, "what an exempt resolver answers teaches nothing"


def test_doh_blocking_by_list(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    policy = {"defaultAction": "allow", "egress": [{"action": "allow", "target": "8.8.8.8"}]}
    env = {"BLOCK_DOH_443": "true", "DOH_BLOCKLIST": "8.8.8.8, 1.1.1.0/24,2606:4700::/32,8.8.8.0/24"}
    start_sidecar(env=env, policy=policy)
    for host in ("8.8.8.8", "1.1.1.1", "2606:4700::1111"):
        assert lab.connect(host, 443) in REJECTED
        assert lab.udp(host, 443) in REJECTED
        assert lab.connect(host, 80) == "connected"
    assert lab.connect("9.9.9.9", 443) == "connected"


def test_doh_blocking_of_all_443(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(env={"BLOCK_DOH_443": "1"}, policy={"defaultAction": "allow"})
    for host in ("198.51.100.10", "2001:db8:100::10"):
        assert lab.connect(host, 443) in REJECTED
        assert lab.udp(host, 443) in REJECTED
        assert lab.connect(host, 80) == "connected"


def test_always_variables(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    """Above the policy, deny over allow; `target:port` opens that port alone."""
    lab.dns.a("cache.example.org", "198.51.100.41")
    lab.dns.a("metrics.example.org", "198.51.100.42")
    lab.dns.a("evil.example.com", "198.51.100.43")
    env = {
        "ALWAYS_ALLOW": "cache.example.org, metrics.example.org:8080,198.51.100.44:80,[2001:db8:44::1]:80",
        "ALWAYS_DENY": "evil.example.com,198.51.100.45",
    }
    policy = allow("*.example.com", "198.51.100.45", "evil.example.com")
    sidecar = start_sidecar(env=env, policy=policy)
    assert lab.fetch("cache.example.org").ok
    assert lab.query("metrics.example.org").addresses
    assert lab.connect("198.51.100.42", 8080) == "connected"
    assert lab.connect("198.51.100.42", 80) in REJECTED
    assert lab.connect("198.51.100.44", 80) == "connected"
    assert lab.connect("198.51.100.44", 443) in REJECTED
    assert lab.connect("2001:db8:44::1", 80) == "connected"
    assert lab.connect("2001:db8:44::1", 443) in REJECTED
    assert lab.query("evil.example.com").rcode == "NXDOMAIN"
    assert lab.connect("198.51.100.45", 80) in REJECTED
    assert sidecar.api("GET", "/policy").json()["policy"] == policy, "a user sees the policy, not the operator's rules"
    assert sidecar.api("POST", "/policy", DENY_ALL).status == 200
    assert lab.fetch("cache.example.org").ok


def test_ipv6_off(internet: Internet) -> None:
    internet.reset()
    with Lab(internet, ipv6=False) as lab, Sidecar(lab, policy=allow("api.example.com")):
        lab.dns.a("api.example.com", API)
        assert lab.fetch("api.example.com").ok
        assert lab.connect("198.51.100.20", 80) in REJECTED


def test_unknown_variables_are_named(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(env={"RULEZ": "x"})
    assert "OPENSANDBOX_EGRESS_RULEZ" in sidecar.wait_for_log("RULEZ")


def test_a_mesh_in_the_same_namespace_is_said(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    redirect = "type nat hook output priority -100;\n tcp dport 8443 redirect to :15001;"
    lab.sandbox.nft(f"table ip nat {{\n chain ISTIO_OUTPUT {{\n {redirect}\n }}\n }}")
    sidecar = start_sidecar(policy=DENY_ALL)

    def said() -> bool:
        return any("Istio" in json.dumps(e) for e in sidecar.events() if e.get("level") in ("warn", "error"))

    assert soon(said), sidecar.log


def test_errors_of_the_resolver_are_passed_on(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    start_sidecar(policy=allow("*.example.com"), env={"DNS_UPSTREAM_TIMEOUT": "1"})
    assert lab.query("gone.example.com").rcode == "NXDOMAIN"
    lab.dns.behave("sick.example.com", rcode="SERVFAIL")
    assert lab.query("sick.example.com").rcode == "SERVFAIL"
    lab.dns.behave("no.example.com", rcode="REFUSED")
    assert lab.query("no.example.com").rcode in ("REFUSED", "SERVFAIL")


def test_before_it_is_ready_a_lab_says_so(lab: Lab) -> None:
    """The helper itself: a sidecar that ends is an error with its words, and a silent resolver an outcome."""
    with pytest.raises(LabError, match="exit code 2"):
        Sidecar(lab, env={"MODE": "x"}).__enter__()
    with pytest.raises(NoReply):
        Reply(lab.client.query_raw(build_query("a.example.com", "A", 1), timeout=0.3))
