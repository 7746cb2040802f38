"""Settings: what is taken from flags and variables, what is refused, and that a refusal names its place in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers import ProviderSettings
from ingress.settings.config import SPARE, AgentRouter, Config, ConfigError, fit, from_args
from ingress.settings.flags import PREFIX, duration, size
from ingress.settings.limits import Limits
from ingress.settings.table import FLAGS, usage
from policies.address import parse_network


def read(*argv: str, **environ: str) -> Config:
    return from_args(argv, environ)


def refused(*argv: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_args(argv, environ)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(caught.value.where + ": ")
    return text


def test_defaults() -> None:
    config = read()
    assert (config.mode, config.agent) == ("header", None)
    assert config.ways == {"header", "host"}
    assert (config.host, config.port) == ("", 28888)
    assert (config.admin_host, config.admin_port, config.admin_only) == ("", 28889, False)
    assert (config.provider_type, config.provider) == ("static", ProviderSettings())
    assert config.workers == 0
    assert (config.tls_cert, config.tls_key, config.handover) == ("", "", "")
    assert config.limits == Limits()
    assert (config.renew_enabled, config.renew_dsn) == (False, "redis://127.0.0.1:6379/0")
    assert (config.renew_key, config.renew_max_len, config.renew_interval) == ("opensandbox:renew:intent", 0, 60.0)
    assert (config.access_log, config.access_log_sample, config.log_level) == (False, 1.0, "info")
    assert config.warnings == ()


def test_the_existing_gateways_flags_in_go_style() -> None:
    config = read(
        "-port", "8080", "-mode=uri", "--provider-type", "batchsandbox", "-log-level=DEBUG",
        "-namespace=opensandbox", "-renew-intent-enabled",
        "--renew-intent-redis-dsn=redis://:secret@redis:6379/1", "-renew-intent-queue-key", "k",
        "-renew-intent-queue-max-len=10", "-renew-intent-min-interval", "30", "-secure-access-keys", "a=QUJD,b=REVG",
    )  # fmt: skip
    assert (config.port, config.provider_type, config.log_level) == (8080, "batchsandbox", "debug")
    assert config.ways == {"uri"}
    assert (config.renew_enabled, config.renew_dsn) == (True, "redis://:secret@redis:6379/1")
    assert (config.renew_key, config.renew_max_len, config.renew_interval) == ("k", 10, 30.0)
    assert config.secure_access_keys == "a=QUJD,b=REVG"
    assert config.warnings == ("--namespace is accepted and ignored; --watch-namespaces narrows what is watched",)
    assert not read("-renew-intent-enabled=false").renew_enabled


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_is_a_variable_too_and_the_flag_wins(flag: object) -> None:
    name, value = flag.name, _sample(flag.name)  # type: ignore[attr-defined]
    extra = {"tls-cert": ["--tls-key", "k"], "tls-key": ["--tls-cert", "c"]}.get(name, [])
    by_flag = read(*extra, f"--{name}={value}")
    by_variable = read(*extra, **{flag.variable: value})  # type: ignore[attr-defined]
    if name == "secure-access-keys":  # where it came from is remembered for errors
        by_variable = by_variable._replace(secure_access_keys_from=by_flag.secure_access_keys_from)
    assert by_flag == by_variable
    assert by_flag != read(*extra) if extra == [] else True
    assert read(*extra, f"--{name}={value}", **{flag.variable: "nonsense, not looked at"}) == by_flag  # type: ignore[attr-defined]


def _sample(name: str) -> str:
    """A value of the flag that is not its default."""
    flag = next(flag for flag in FLAGS if flag.name == name)
    by_kind = {
        "": "true", "PORT": "9000", "ADDRESS": "127.0.0.2", "N": "7", "FILE": "/x/y", "CIDR,...": "10.0.0.0/8",
        "PATH": "/x/s", "NAME": "box", "NAME,...": "one,two", "a=BASE64,...": "a=QUJD", "TIME": "7s", "SIZE": "8k",
        "URL": "redis://r:1/2", "KEY": "k", "LEVEL": "warn", "SHARE": "0.5", "MODE": "uri", "TYPE": "docker",
    }  # fmt: skip
    return by_kind[flag.value]


def test_the_variables_that_opensandbox_and_the_clients_know() -> None:
    assert read(OPENSANDBOX_SECURE_ACCESS_KEYS="a=QUJD").secure_access_keys == "a=QUJD"
    assert read(DOCKER_HOST="unix:///d.sock").provider.docker_host == "unix:///d.sock"
    assert read(KUBECONFIG="/k").provider.kubeconfig == "/k"
    both = {PREFIX + "KUBECONFIG": "/ours", "KUBECONFIG": "/theirs"}
    assert from_args([], both).provider.kubeconfig == "/ours"


def test_what_is_empty_counts_as_not_given() -> None:
    argv = [f"--{flag.name}=" for flag in FLAGS]
    assert from_args(argv, {flag.variable: "  " for flag in FLAGS}) == read()


def test_a_later_flag_wins() -> None:
    assert read("--port", "1", "--port=2").port == 2


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("header", {"header", "host"}),
        ("Header", {"header", "host"}),
        ("host", {"host"}),
        ("wildcard", {"host"}),
        ("uri", {"uri"}),
        ("header+uri", {"header", "host", "uri"}),
        ("uri+header", {"header", "host", "uri"}),
        ("host+uri", {"host", "uri"}),
    ],
)
def test_modes(text: str, ways: set[str]) -> None:
    assert read("--mode", text).ways == ways


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "1"], "did you mean --port?"),
        (["--nothing-like-it"], "no such flag"),
        (["-p", "1"], "no such flag"),
        (["serve"], "settings are flags"),
        (["--"], "settings are flags"),
        (["--port"], "needs a value; write --port PORT"),
        (["--port", "--host"], "needs a value"),
        (["--port", "x"], "'x' is not a whole number from 0 to 65535"),
        (["--port", "65536"], "not a whole number"),
        (["--port", "-1"], "not a whole number"),
        (["--port", "\u0661"], "not a whole number"),
        (["--port", "1\n2"], r"'1\n2'"),
        (["--host", "example.com"], "is not an address; write 127.0.0.1"),
        (["--host", "127.0.0.256"], "is not an address"),
        (["--mode", "path"], "write header, host, uri, header+uri"),
        (["--mode", "header+"], "is not known"),
        (["--mode", "agent-sandbox+uri"], "is not known"),
        (["--provider-type", "k8s"], "write static, docker, batchsandbox or agent-sandbox"),
        (["--log-level", "loud"], "write debug, info, warn"),
        (["--access-log", "true"], "write --access-log=true"),
        (["--access-log=maybe"], "neither true nor false"),
        (["--access-log-sample", "2"], "number from 0 to 1"),
        (["--access-log-sample", "nan"], "number from 0 to 1"),
        (["--workers", "0"], "from 1 to 1024"),
        (["--workers", "many"], "from 1 to 1024"),
        (["--drain", "soon"], "is not a duration; write 10s"),
        (["--drain", "10 parsecs"], "is not a duration"),
        (["--drain", "1y"], "is not a duration"),
        (["--drain", "-1s"], "is not a duration"),
        (["--drain", "365d"], "out of range"),
        (["--connect-timeout", "0"], "out of range"),
        (["--head-bytes", "12"], "out of range"),
        (["--head-bytes", "lots"], "is not a size"),
        (["--trusted-proxies", "10.0.0.0/33"], "'10.0.0.0/33'"),
        (["--allow-target", "localhost"], "not an address"),
        (["--proxy-protocol-from", ","], "holds only commas"),
        (["--tls-cert", "x"], "--tls-key: is missing"),
        (["--tls-key", "x"], "--tls-cert: is missing"),
        (["--admin-port", "28888"], "is the main port as well"),
        (["--admin-port=0", "--admin-only"], "needs an admin port"),
        (["--routes", "x", "--provider-type", "docker"], "is for --provider-type static"),
        (["--upstream-host", "http://localhost"], "is not a Host"),
        (["--upstream-host", "a b"], "is not a Host"),
        (["--watch-namespaces", "Default"], "is not a namespace's name"),
        (["--handover", "/" + "x" * 100], "too long for a unix socket"),
        (["--routes", "a\0b"], "NUL"),
        (["--secure-access-keys", "a=QUJD", "--secure-access-keys-file", "f"], "exclude each other"),
        (["--renew-intent-redis-dsn", "redis"], "is not a Redis URL"),
    ],
    ids=lambda value: " ".join(value)[:40].replace("\0", "0").replace("\n", "n") if isinstance(value, list) else "",
)
def test_bad_flags(argv: list[str], words: str) -> None:
    text = refused(*argv)
    assert words in text
    assert text.startswith(("--", "-p", "serve"))


def test_a_bad_variable_is_named_as_such() -> None:
    assert refused(SALLYPORT_INGRESS_PORT="x").startswith("SALLYPORT_INGRESS_PORT: ")


def test_unknown_variables_are_named_in_a_warning() -> None:
    (warning,) = read(SALLYPORT_INGRESS_PROT="1", OTHER="2").warnings
    assert "SALLYPORT_INGRESS_PROT" in warning
    assert "OTHER" not in warning


def test_secrets_are_not_quoted() -> None:
    secret = "c2VjcmV0"
    assert secret not in refused("--secure-access-keys", f"a={secret}", "--secure-access-keys-file", "f")
    assert "hunter2" not in refused("--renew-intent-redis-dsn", "hunter2@redis")
    assert "hunter2" not in refused("--mode", "agent-sandbox", ROUTER_AUTH_TOKEN="hunter2 x")


# -- agent-sandbox's router ----------------------------------------------------------------------------------------
def test_agent_sandbox_mode_reads_the_routers_variables() -> None:
    config = read(
        "--mode", "agent-sandbox", ROUTER_AUTH_TOKEN="t", PROXY_TIMEOUT_SECONDS="90.5", CLUSTER_DOMAIN="c.example",
        MAX_KEEPALIVE_CONNECTIONS="50",
    )  # fmt: skip
    assert config.agent == AgentRouter("t", 90.5, "c.example")
    assert (config.port, config.ways, config.provider_type) == (8080, frozenset(), "agent-sandbox")
    assert config.limits.idle_per_endpoint == 50
    assert read("--mode=agent-sandbox", "--port=1", ROUTER_AUTH_TOKEN="t").port == 1
    static = read("--mode=agent-sandbox", "--provider-type=static", ALLOW_UNAUTHENTICATED_ROUTER="true")
    assert (static.provider_type, static.agent) == ("static", AgentRouter("", 180.0, ""))


def test_agent_sandbox_mode_goes_on_with_a_deployment_as_it_is() -> None:
    carried = {
        "ROUTER_AUTH_TOKEN": " 0123456789abcdef\n",
        "TRUSTED_PROXY_CIDRS": "10.128.0.0/14, 192.0.2.1",
        "WEBSOCKET_IDLE_TIMEOUT_SECONDS": "0",
        "WEBSOCKET_MAX_LIFETIME_SECONDS": "86400",
        "WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT": "0",
    }
    config = read("--mode=agent-sandbox", **carried)
    assert config.agent is not None
    assert config.agent.token == "0123456789abcdef"
    assert [str(network) for network in config.trusted_proxies] == ["10.128.0.0/14", "192.0.2.1"]
    assert (config.limits.tunnel_timeout, config.limits.wait_ready) == (0, 2)
    assert [line.rpartition(": ")[2] for line in config.warnings] == ["WEBSOCKET_MAX_LIFETIME_SECONDS"]
    ours = read(
        "--mode=agent-sandbox", "--trusted-proxies=::1", "--tunnel-timeout=5", "--wait-ready=0",
        "--idle-per-endpoint=3", MAX_KEEPALIVE_CONNECTIONS="4", **carried,
    )  # fmt: skip
    assert [str(network) for network in ours.trusted_proxies] == ["::1"]
    assert (ours.limits.tunnel_timeout, ours.limits.wait_ready, ours.limits.idle_per_endpoint) == (5, 0, 3)


def test_agent_sandbox_mode_warns_of_an_open_door() -> None:
    assert "every sandbox" in read("--mode=agent-sandbox", ALLOW_UNAUTHENTICATED_ROUTER="on").warnings[0]
    assert "might be guessed" in read("--mode=agent-sandbox", ROUTER_AUTH_TOKEN="short").warnings[0]
    assert read("--mode=agent-sandbox", ROUTER_AUTH_TOKEN="0123456789abcdef").warnings == ()


def test_agent_sandbox_mode_needs_a_token_or_a_word() -> None:
    assert "ALLOW_UNAUTHENTICATED_ROUTER=true" in refused("--mode", "agent-sandbox")
    assert refused("--mode", "agent-sandbox", ALLOW_UNAUTHENTICATED_ROUTER="false")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PROXY_TIMEOUT_SECONDS", "0"),
        ("PROXY_TIMEOUT_SECONDS", "inf"),
        ("PROXY_TIMEOUT_SECONDS", "-3"),
        ("CLUSTER_DOMAIN", "a b"),
        ("CLUSTER_DOMAIN", "-x"),
        ("MAX_KEEPALIVE_CONNECTIONS", "lots"),
        ("TRUSTED_PROXY_CIDRS", "10.0.0.0/33"),
        ("WEBSOCKET_IDLE_TIMEOUT_SECONDS", "inf"),
        ("ALLOW_UNAUTHENTICATED_ROUTER", "perhaps"),
    ],
)
def test_agent_sandbox_bad_variables(variable: str, value: str) -> None:
    environ = {"ROUTER_AUTH_TOKEN": "t", variable: value}
    assert refused("--mode", "agent-sandbox", **environ).startswith(variable + ": ")


def test_the_routers_variables_mean_nothing_in_other_modes() -> None:
    assert read(PROXY_TIMEOUT_SECONDS="x", MAX_KEEPALIVE_CONNECTIONS="x") == read()


# -- values --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("250ms", 0.25), ("1.5", 1.5), ("0", 0), ("1 m", 60)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration("--x", text, 0, 1e6) == seconds


@pytest.mark.parametrize(("text", "octets"), [("65536", 65536), ("64k", 65536), ("64KiB", 65536), ("1 M", 1 << 20)])
def test_sizes(text: str, octets: int) -> None:
    assert size("--x", text, 0, 1 << 40) == octets


def test_networks_and_hosts() -> None:
    assert read("--allow-target", "127.0.0.0/8, ::1,10.1.2.3").allow_target == tuple(
        parse_network(text) for text in ("127.0.0.0/8", "::1", "10.1.2.3")
    )
    assert read("--host", "[::1]").host == "::1"
    assert read("--host", "localhost").admin_host == "127.0.0.1"
    assert read("--host", "10.0.0.1", "--admin-host", "*").admin_host == ""
    for good in ("localhost", "localhost:3000", "[::1]:80", "a_b.example"):
        assert read("--upstream-host", good).upstream_host == good


def test_connections_fit_the_descriptors() -> None:
    config = read()
    assert fit(config, 2 * config.limits.connections + SPARE) == config
    fewer = fit(config, 1024)
    assert fewer.limits.connections == (1024 - SPARE) // 2
    assert "ulimit -n" in fewer.warnings[-1]
    assert fit(config, 10).limits.connections > 0


def test_the_help_names_every_flag_and_its_default() -> None:
    text = usage()
    for flag in FLAGS:
        assert f"\n  --{flag.name}" in text
        assert flag.default in text
    assert all(len(line) <= 120 for line in text.splitlines())
    assert {field.replace("_", "-") for field in Limits._fields} <= {flag.name for flag in FLAGS}


words = st.sampled_from([f"--{flag.name}" for flag in FLAGS]) | st.text(max_size=12)


@given(st.lists(words, max_size=6), st.dictionaries(st.sampled_from([f.variable for f in FLAGS]), st.text(max_size=9)))
def test_whatever_is_written_is_taken_or_refused_in_one_line(argv: list[str], environ: dict[str, str]) -> None:
    try:
        from_args(argv, environ)
    except ConfigError as error:
        text = str(error)
    else:
        return
    assert text.isprintable()
