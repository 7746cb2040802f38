"""Settings: what is taken, what is refused, and that every refusal is one line that names the variable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.config import PREFIX, Config, ConfigError, Endpoint, from_env
from egress.hostconfig import host_config

RESOLV = "search example.com\nnameserver 192.0.2.53\n"


def read(resolv_conf: str = RESOLV, /, **variables: str) -> Config:
    return from_env({PREFIX + name: value for name, value in variables.items()}, resolv_conf)


def refused(resolv_conf: str = RESOLV, /, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(resolv_conf, **variables)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(caught.value.variable + ": ")
    return text


def test_defaults() -> None:
    config = read()
    assert config.mode == "dns+nft"
    assert config.http == Endpoint(b"", 18080)
    assert config.socket_path == "/run/sallyport/egress.sock"
    assert not config.socket_explicit
    assert config.max_rules == 4096
    assert config.log_level == "info"
    assert config.upstreams == (Endpoint(bytes([192, 0, 2, 53]), 53),)
    assert (config.upstream_timeout, config.probe_name, config.probe_interval) == (5.0, "", 30.0)
    assert (config.token, config.rules, config.policy_file, config.deny_webhook) == ("", "", "", None)
    assert (config.block_doh, config.doh_networks, config.require) == (False, (), frozenset())


def test_blank_values_count_as_unset() -> None:
    names = ("MODE", "TOKEN", "HTTP_ADDR", "MAX_RULES", "DNS_UPSTREAM", "REQUIRE", "LOG_LEVEL", "BLOCK_DOH_443")
    blank = read(**dict.fromkeys(names, "  "), MITMPROXY_TRANSPARENT="", UPSTREAM_PROXY=" ")
    assert blank == read()


@pytest.mark.parametrize(
    ("text", "mode"),
    [("dns", "dns"), ("DNS", "dns"), ("dns+nft", "dns+nft"), ("NFT+dns", "dns+nft"), (" Dns + Nft ", "dns+nft")],
)
def test_mode(text: str, mode: str) -> None:
    assert read(MODE=text).mode == mode


@pytest.mark.parametrize("text", ["nft", "dns+", "+", "dns+nftables", "off", "dns,nft", "dns nft"])
def test_mode_refused(text: str) -> None:
    assert "dns" in refused(MODE=text)


def test_mode_dns_warns() -> None:
    assert any("only names" in warning for warning in read(MODE="dns").warnings)
    assert not any("only names" in warning for warning in read().warnings)


@pytest.mark.parametrize(
    ("name", "value", "feature"),
    [
        ("MITMPROXY_TRANSPARENT", "true", "TLS interception"),
        ("MITMPROXY_TRANSPARENT", "1", "TLS interception"),
        ("MITMPROXY_SCRIPT", "/x.py", "TLS interception"),
        ("MITMPROXY_PORT", "18081", "TLS interception"),
        ("CREDENTIAL_VAULT_REQUIRE_TLS", "yes", "the credential vault"),
        ("CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS", "10.0.0.0/8", "the credential vault"),
        ("UPSTREAM_PROXY", "http://user:hunter2@proxy.example.com:3128", "upstream proxy"),
        ("UPSTREAM_PROXY_AUTH", "user:hunter2", "upstream proxy"),
    ],
)
def test_absent_features_are_refused_not_ignored(name: str, value: str, feature: str) -> None:
    text = refused(**{name: value})
    assert text.startswith(PREFIX + name)
    assert feature in text
    assert "hunter2" not in text


@pytest.mark.parametrize("value", ["", "0", "false", "False", "no", "off", " "])
def test_absent_features_may_be_switched_off(value: str) -> None:
    assert read(MITMPROXY_TRANSPARENT=value, CREDENTIAL_VAULT_REQUIRE_TLS=value, UPSTREAM_PROXY=value) == read()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (":18080", (b"", 18080)),
        ("127.0.0.1:18080", (b"\x7f\0\0\1", 18080)),
        ("localhost:80", (b"\x7f\0\0\1", 80)),
        ("[::1]:1", (b"\0" * 15 + b"\1", 1)),
        ("0.0.0.0:65535", (b"\0" * 4, 65535)),
        ("[::]:18080", (b"\0" * 16, 18080)),
        ("[::ffff:192.0.2.1]:18080", (bytes([192, 0, 2, 1]), 18080)),
    ],
)
def test_http_addr(text: str, endpoint: tuple[bytes, int]) -> None:
    assert read(HTTP_ADDR=text).http == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "18080", "127.0.0.1", ":0", ":65536", ":x", ":", "::1:80", "[::1]", "[::1", "[127.0.0.1]:80", "127.0.0.1:",
        "example.com:80", "127.0.0.1:-1", "127.1:80", ":٣", "[::1]80", "http://127.0.0.1:80", "[fe80::1%eth0]:80",
        "[]:80",
    ],
)  # fmt: skip
def test_http_addr_refused(text: str) -> None:
    assert refused(HTTP_ADDR=text).startswith("OPENSANDBOX_EGRESS_HTTP_ADDR")


def test_require() -> None:
    assert read(REQUIRE="nft, RAW").require == {"nft", "raw"}
    assert read(REQUIRE="token", TOKEN="t").require == {"token"}
    assert "OPENSANDBOX_EGRESS_TOKEN" in refused(REQUIRE="token")
    assert "'tls'" in refused(REQUIRE="nft,tls")
    assert "dns+nft" in refused(REQUIRE="nft", MODE="dns")
    assert "dns+nft" in refused(REQUIRE="raw", MODE="dns")


@pytest.mark.parametrize("token", ["\x00", "a\nb", "schlüssel", "a\udc80"])
def test_token_that_no_header_carries(token: str) -> None:
    text = refused(TOKEN=token)
    assert token not in text


def test_upstreams() -> None:
    config = read(DNS_UPSTREAM="192.0.2.1, 192.0.2.1:53,[2001:db8::1]:5353 ,2001:db8::2,[2001:db8::3],192.0.2.2:54,")
    assert [(len(address), port) for address, port in config.upstreams] == [
        (4, 53),
        (16, 5353),
        (16, 53),
        (16, 53),
        (4, 54),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "dns.example.com", "127.0.0.11", "127.0.0.1:5353", "[::1]:53", "::1", "0.0.0.0", "::",
        "224.0.0.251", "ff02::fb",
        "255.255.255.255", "192.0.2.1:0", "192.0.2.1:99999", "192.0.2.1:", "192.0.2", "010.0.0.1", "[2001:db8::1", ",",
        "::ffff:127.0.0.1", "fe80::1", "fe80::1%eth0", "192.0.2.1 192.0.2.2", "https://192.0.2.1", "192.0.2.1,nope",
    ],
)  # fmt: skip
def test_upstreams_refused(text: str) -> None:
    assert refused(DNS_UPSTREAM=text).startswith("OPENSANDBOX_EGRESS_DNS_UPSTREAM")


def test_upstreams_of_resolv_conf() -> None:
    config = read(
        "# c\nnameserver 127.0.0.53\nnameserver 192.0.2.1 # x\nnameserver\nnameserver 169.254.20.10\noptions x\n"
    )
    assert config.upstreams == (Endpoint(bytes([192, 0, 2, 1]), 53), Endpoint(bytes([169, 254, 20, 10]), 53))
    assert any("127.0.0.53" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    "resolv_conf", ["", "search x\n", "nameserver 127.0.0.11\n", "nameserver ::1", "nameserver junk"]
)
def test_no_usable_resolver_demands_the_variable(resolv_conf: str) -> None:
    text = refused(resolv_conf)
    assert text.startswith("OPENSANDBOX_EGRESS_DNS_UPSTREAM: must be set")
    assert ("127.0.0.11" in text) == ("127" in resolv_conf or "::1" in resolv_conf)
    assert read(resolv_conf, DNS_UPSTREAM="192.0.2.1").upstreams


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("DNS_UPSTREAM_TIMEOUT", ("1", "120"), ("0", "121", "-1", "5s", "1.5", "x", "1_0", "٣", "9" * 5000)),
        ("DNS_UPSTREAM_PROBE_INTERVAL_SEC", ("1", "3600"), ("0", "3601", "x")),
        ("MAX_RULES", ("0", "1", "100000"), ("-1", "x", "1e3", "99999999999")),
        ("LOG_LEVEL", ("debug", "INFO", "warn", "warning", "error"), ("loud", "0")),
        ("BLOCK_DOH_443", ("true", "FALSE", "1", "0", "yes", "off"), ("maybe", "2")),
        ("DNS_UPSTREAM_PROBE", (".", "example.com", "Example.COM."), ("..", "a..b", "a b", "-a.example", "a" * 64)),
        ("SANDBOX_ID", ("x", "Sandbox_1.a"), ("a\nb", "x" * 257)),
        ("METRICS_EXTRA_ATTRS", ("a=b", "a=b=c, d="), ("a", "=b", "a=b,c", "a=\x1b")),
        ("NAMESERVER_EXEMPT", ("192.0.2.1", "192.0.2.1,2001:db8::1"), ("192.0.2.1:53", "x", "0.0.0.0", "10.0.0.0/8")),
        ("DOH_BLOCKLIST", ("192.0.2.1", "192.0.2.0/24,2001:db8::/32"),
         ("x", "192.0.2.0/33", "192.0.2.0/-1", "dns.example")),
        ("POLICY_FILE", ("/var/egress/policy.json", "p.yaml"),
         ("/var/", "/opt/opensandbox/p", "//opt/x/../opensandbox/p")),
        ("SOCKET", ("/run/x.sock",), ("x.sock", "/" + "x" * 107, "/opt/opensandbox/s", "/run/")),
        (
            "DENY_WEBHOOK",
            ("http://h", "HTTPS://u:p@Hooks.example.com:8443/a?b#c", "http://[2001:db8::1]:80/", "http://192.0.2.1"),
            ("h", "ftp://h/", "http://", "http:///x", "http://h:0", "http://h:x", "http://a b", "http://[::1", "http://[x]/",
             "http://h/\x01", "http://ü.example", "http://0x7f.1/", "http://2130706433/"),
        ),
    ],
)  # fmt: skip
def test_good_and_bad_values(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    for value in good:
        read(**{name: value})
    for value in bad:
        assert refused(**{name: value}).startswith(PREFIX + name), value


def test_a_webhook_s_secret_is_not_shown() -> None:
    assert "hunter2" not in refused(DENY_WEBHOOK="http://user:hunter2@host:port/")


def test_parsed_values() -> None:
    config = read(
        DENY_WEBHOOK="https://u:p@Hooks.example.com/denied?x=1#f",
        METRICS_EXTRA_ATTRS="team=red, zone=a=b",
        DNS_UPSTREAM_PROBE="Example.COM.",
        BLOCK_DOH_443="true",
        DOH_BLOCKLIST="192.0.2.9/24,2001:db8::1",
    )
    assert config.deny_webhook == (True, "hooks.example.com", 443, "/denied?x=1", "u:p")
    assert config.extra_attributes == (("team", "red"), ("zone", "a=b"))
    assert config.probe_name == "example.com"
    assert [str(network) for network in config.doh_networks] == ["192.0.2.0/24", "2001:db8::1"]


def test_a_blocklist_without_the_switch_is_told() -> None:
    assert any("BLOCK_DOH_443" in warning for warning in read(DOH_BLOCKLIST="192.0.2.1").warnings)


def test_unknown_variables_are_told() -> None:
    config = from_env({PREFIX + "SNI_INSPECT": "true", PREFIX + "TOKE\n": "x", "HOME": "/"}, RESOLV)
    warning = next(warning for warning in config.warnings if "unknown" in warning)
    assert "OPENSANDBOX_EGRESS_SNI_INSPECT" in warning
    assert "HOME" not in warning
    assert warning.isprintable()


def test_otlp_endpoints() -> None:
    general = from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example.com:4318/base/"}, RESOLV)
    assert general.otlp is not None
    assert general.otlp.target == "/base/v1/metrics"
    exact = from_env(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c.example.com/m"},
        RESOLV,
    )
    assert exact.otlp is not None
    assert exact.otlp.target == "/m"
    assert not any("OTEL" in warning for warning in exact.warnings)
    assert (from_env({}, RESOLV).otlp, exact.otlp_interval) == (None, 30.0)
    assert from_env({"OTEL_METRIC_EXPORT_INTERVAL": "1500"}, RESOLV).otlp_interval == 1.5
    for wrong in ("0", "1s", "-1", "1.5", "99", "9" * 30):
        with pytest.raises(ConfigError, match=r"^OTEL_METRIC_EXPORT_INTERVAL"):
            from_env({"OTEL_METRIC_EXPORT_INTERVAL": wrong}, RESOLV)
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT"):
        from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"}, RESOLV)


def test_name_budgets() -> None:
    assert from_env({}, RESOLV).name_budget == (49_152, 4 * 49_152, 64)
    assert from_env({PREFIX + "NAME_BUDGET": "1000"}, RESOLV).name_budget == (1000, 4000, 64)
    most = from_env({PREFIX + "NAME_BUDGET": "999999999", PREFIX + "NAME_BUDGET_RATE": "1000000"}, RESOLV)
    assert most.name_budget == (999_999_999, 3_999_999_996, 1_000_000)
    every = {PREFIX + "NAME_BUDGET": "0", PREFIX + "NAME_BUDGET_ALL": "7", PREFIX + "NAME_BUDGET_RATE": "0"}
    assert from_env(every, RESOLV).name_budget == (0, 7, 0)
    for name in every:
        with pytest.raises(ConfigError, match=f"^{name}"):
            from_env({name: "-1"}, RESOLV)


def test_the_name_guard() -> None:
    assert not from_env({}, RESOLV).sni
    for text in ("off", "OFF", " "):
        assert not from_env({PREFIX + "SNI": text}, RESOLV).sni
    on = from_env({PREFIX + "SNI": "Enforce"}, RESOLV)
    assert (on.sni, on.sni_ech) == (True, False)
    assert from_env({PREFIX + "SNI": "enforce", PREFIX + "SNI_ECH": "pass"}, RESOLV).sni_ech
    assert not from_env({PREFIX + "SNI": "enforce", PREFIX + "SNI_ECH": "refuse"}, RESOLV).sni_ech
    for name, text in (("SNI", "true"), ("SNI", "on"), ("SNI_ECH", "allow")):
        with pytest.raises(ConfigError, match=f"^{PREFIX}{name}: .*write "):
            from_env({PREFIX + name: text}, RESOLV)
    with pytest.raises(ConfigError, match=f"^{PREFIX}SNI: .*write dns\\+nft"):
        from_env({PREFIX + "SNI": "enforce", PREFIX + "MODE": "dns"}, RESOLV)
    alone = from_env({PREFIX + "SNI_ECH": "pass"}, RESOLV)
    assert any(f"{PREFIX}SNI_ECH has no effect" in warning for warning in alone.warnings)


def test_doh_blocking_that_the_mode_does_not_hold_is_said() -> None:
    told = f"{PREFIX}BLOCK_DOH_443 has no effect in {PREFIX}MODE=dns; write dns+nft there"
    for mode, wanted in (("dns", True), ("dns+nft", False)):
        found = from_env({PREFIX + "BLOCK_DOH_443": "true", PREFIX + "MODE": mode}, RESOLV)
        assert (told in found.warnings) == wanted


def test_a_guard_from_outside_has_none_and_says_so() -> None:
    with pytest.raises(ConfigError, match=f"^{PREFIX}SNI: "):
        host_config({PREFIX + "SNI": "enforce"})
    assert not host_config({PREFIX + "SNI": "off"}).sni


def test_search_domains() -> None:
    text = RESOLV + "\nsearch old.example\nsearch NS.svc.Cluster.local. svc.cluster.local b@d svc.cluster.local\n"
    assert from_env({}, text).search == ("ns.svc.cluster.local", "svc.cluster.local")
    assert from_env({}, RESOLV + "\ndomain example.com\n").search == ("example.com",)
    assert from_env({}, "nameserver 192.0.2.53\n").search == ()


VALUES = st.text(max_size=40) | st.from_regex(r"[0-9a-f:.\[\]/,=+%@-]{1,40}")
NAMES = st.sampled_from(
    [
        "MODE", "HTTP_ADDR", "SOCKET", "TOKEN", "REQUIRE", "MAX_RULES", "SANDBOX_ID", "LOG_LEVEL", "DNS_UPSTREAM",
        "DNS_UPSTREAM_TIMEOUT", "DNS_UPSTREAM_PROBE", "NAMESERVER_EXEMPT", "BLOCK_DOH_443", "DOH_BLOCKLIST",
        "POLICY_FILE", "DENY_WEBHOOK", "SNI", "SNI_ECH", "METRICS_EXTRA_ATTRS", "MITMPROXY_X", "NEW",
    ]
)  # fmt: skip


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.text(max_size=60))
def test_any_environment_is_taken_or_refused_in_one_line(variables: dict[str, str], resolv_conf: str) -> None:
    environment = {PREFIX + name: value for name, value in variables.items()}
    outcome: Config | ConfigError
    try:
        outcome = from_env(environment, resolv_conf)
    except ConfigError as error:
        outcome = error
    if isinstance(outcome, Config):
        assert outcome.upstreams
        assert all(text.isprintable() for text in outcome.warnings)
    else:
        assert str(outcome).isprintable()
        assert outcome.variable.removeprefix(PREFIX) in {*variables, "DNS_UPSTREAM"}
