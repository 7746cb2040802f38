"""The sidecar's settings: one frozen value, read once from the environment.

Everything that an operator can get wrong ends here, before anything else is built, as one `ConfigError`: a single line
that names the variable, says what is wrong with it and what to write. Nothing is guessed and nothing is dropped in
silence: a variable of a feature that this program does not have is refused when it would switch that feature on, and
an unknown variable with our prefix is named in `Config.warnings`.

Policy texts (`rules`, `always_allow`, `always_deny`) stay raw here: the policy language has its own parser. Addresses
are packed bytes as everywhere, 4 or 16 of them, an IPv4-mapped IPv6 address as 4.
"""

from __future__ import annotations

from os.path import normpath

from egress.dns.budget import OCTETS as NAME_OCTETS
from egress.dns.budget import RATE, SHARES, Limits
from egress.literals import (
    DIGITS,
    FALSE,
    ConfigError,
    Endpoint,
    Reader,
    Url,
    is_host,
    pack,
    parse_url,
    read_network,
    read_port,
    safe,
    split_port,
    unusable,
)
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeVar

    from policies.address import Network

    T = TypeVar("T")

__all__ = ["Config", "ConfigError", "Endpoint", "from_env"]

PREFIX = "OPENSANDBOX_EGRESS_"
DEFAULT_SOCKET = "/run/sallyport/egress.sock"
SHARED_VOLUME = "/opt/opensandbox"
"""Mounted writable in sidecar and sandbox alike: nothing that decides anything may lie below it."""

MODES = ("dns", "dns+nft")
LEVELS = ("debug", "info", "warn", "error")
REQUIREMENTS = ("nft", "raw", "token")

_KNOWN = frozenset(
    (
        "MODE", "RULES", "POLICY_FILE", "HTTP_ADDR", "SOCKET", "TOKEN", "REQUIRE", "MAX_RULES", "SANDBOX_ID",
        "LOG_LEVEL", "DNS_UPSTREAM", "DNS_UPSTREAM_TIMEOUT", "DNS_UPSTREAM_PROBE", "DNS_UPSTREAM_PROBE_INTERVAL_SEC",
        "NAMESERVER_EXEMPT", "BLOCK_DOH_443", "DOH_BLOCKLIST", "DENY_WEBHOOK", "METRICS_EXTRA_ATTRS", "ALWAYS_ALLOW",
        "ALWAYS_DENY", "NAME_BUDGET", "NAME_BUDGET_ALL", "NAME_BUDGET_RATE", "SNI", "SNI_ECH",
    )
)  # fmt: skip
_ABSENT = (
    ("MITMPROXY_", "TLS interception"),
    ("CREDENTIAL_VAULT_", "the credential vault"),
    ("UPSTREAM_PROXY", "chaining to an upstream proxy"),
)
_MOST_OCTETS = 999_999_999
_OTLP = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"


class Config(NamedTuple):
    """Every setting of the sidecar, checked."""

    mode: str  # "dns" or "dns+nft"
    rules: str  # policy document, "" = absent
    policy_file: str  # path, "" = none
    http: Endpoint  # address b"" = every address, v4 and v6
    socket_path: str  # unix socket of the control API
    socket_explicit: bool  # the operator asked for that path: failing to create it is an error, not a warning
    token: str  # "" = none
    require: frozenset[str]  # of REQUIREMENTS
    max_rules: int  # 0 = no cap
    sandbox_id: str
    log_level: str  # of LEVELS
    upstreams: tuple[Endpoint, ...]  # at least one
    upstream_timeout: float  # seconds
    probe_name: str  # "" = the root (ask for its NS), else a canonical name
    probe_interval: float  # seconds
    nameserver_exempt: tuple[bytes, ...]
    block_doh: bool  # with an empty doh_networks: all of port 443
    doh_networks: tuple[Network, ...]
    deny_webhook: Url | None
    extra_attributes: tuple[tuple[str, str], ...]
    name_budget: Limits
    search: tuple[str, ...]  # the search domains of /etc/resolv.conf, canonical
    otlp: Url | None
    otlp_interval: float  # seconds
    always_allow: str
    always_deny: str
    sni: bool  # the name guard is on
    sni_ech: bool  # and lets an encrypted ClientHello pass by the name outside of it
    warnings: tuple[str, ...]  # to be logged once at start


def from_env(environ: Mapping[str, str], resolv_conf: str) -> Config:
    """Read the settings out of `environ`; `resolv_conf` is the text of /etc/resolv.conf ("" where there is none).

    Raises `ConfigError` for the first setting that cannot be used.
    """
    env = Reader(environ, PREFIX)
    warnings: list[str] = []
    _refuse_absent(environ)
    mode = _mode(env)
    token = _token(env)
    require = _require(env, mode, token)
    if mode == "dns":
        warnings.append(
            f"{PREFIX}MODE=dns: only names are guarded; packets to addresses pass unfiltered and IP rules are not "
            "enforced (write dns+nft to enforce them)"
        )
    if not token:
        warnings.append(f"{PREFIX}TOKEN is not set: the policy can be changed over the unix socket only")
    sni, sni_ech = _sni(env, mode)
    if sni_ech and not sni:
        warnings.append(f"{PREFIX}SNI_ECH has no effect without {PREFIX}SNI=enforce")
    block_doh = env.boolean("BLOCK_DOH_443", default=False)
    networks = _unique(read_network(PREFIX + "DOH_BLOCKLIST", part) for part in env.listed("DOH_BLOCKLIST"))
    if networks and not block_doh:
        warnings.append(f"{PREFIX}DOH_BLOCKLIST has no effect without {PREFIX}BLOCK_DOH_443=true")
    if block_doh and mode == "dns":
        warnings.append(f"{PREFIX}BLOCK_DOH_443 has no effect in {PREFIX}MODE=dns; write dns+nft there")
    unknown = sorted(
        name
        for name in environ
        if name.startswith(PREFIX) and name[len(PREFIX) :] not in _KNOWN and not _belongs_to_absent(name)
    )
    if unknown:
        warnings.append("unknown variables, ignored: " + ", ".join(safe(name, 80) for name in unknown[:20]))
    webhook = env.text("DENY_WEBHOOK")
    return Config(
        mode=mode,
        rules=env.text("RULES"),
        policy_file=_path(env, "POLICY_FILE", ""),
        http=_listen(PREFIX + "HTTP_ADDR", env.text("HTTP_ADDR") or ":18080"),
        socket_path=_path(env, "SOCKET", DEFAULT_SOCKET),
        socket_explicit=bool(env.text("SOCKET")),
        token=token,
        require=require,
        max_rules=env.integer("MAX_RULES", 4096, 0, 1_000_000),
        sandbox_id=env.printable("SANDBOX_ID", 256),
        log_level=_level(env),
        upstreams=_upstreams(env, resolv_conf, warnings),
        upstream_timeout=float(env.integer("DNS_UPSTREAM_TIMEOUT", 5, 1, 120)),
        probe_name=_probe(env),
        probe_interval=float(env.integer("DNS_UPSTREAM_PROBE_INTERVAL_SEC", 30, 1, 3600)),
        nameserver_exempt=_exempt(env),
        block_doh=block_doh,
        doh_networks=networks,
        deny_webhook=parse_url(PREFIX + "DENY_WEBHOOK", webhook) if webhook else None,
        extra_attributes=_attributes(env),
        name_budget=_name_budget(env),
        search=_search(resolv_conf),
        otlp=_otlp(environ),
        otlp_interval=_otlp_interval(environ),
        always_allow=env.text("ALWAYS_ALLOW"),
        always_deny=env.text("ALWAYS_DENY"),
        sni=sni,
        sni_ech=sni_ech,
        warnings=tuple(warnings),
    )


def _belongs_to_absent(name: str) -> bool:
    return any(name.startswith(PREFIX + stem) for stem, _ in _ABSENT)


def _refuse_absent(environ: Mapping[str, str]) -> None:
    """A setting of a feature that is not here must not look as if it held: refuse it, unless it says "off"."""
    for stem, feature in _ABSENT:
        for name in sorted(environ):
            value = environ[name].strip().lower()
            if name.startswith(PREFIX + stem) and value and value not in FALSE:
                raise ConfigError(safe(name, 100), f"this version does not have {feature}; unset the variable")


def _mode(env: Reader) -> str:
    text = env.text("MODE")
    if not text:
        return "dns+nft"
    tokens = {token.strip().lower() for token in text.split("+")}
    for token in sorted(tokens):
        if token not in ("dns", "nft"):
            raise ConfigError(PREFIX + "MODE", f"unknown token '{safe(token)}'; write dns or dns+nft")
    if "dns" not in tokens:
        raise ConfigError(PREFIX + "MODE", f"'{safe(text)}' leaves names unguarded; write dns+nft")
    return "dns+nft" if "nft" in tokens else "dns"


def _token(env: Reader) -> str:
    token = env.text("TOKEN")
    if not all(" " <= character <= "~" for character in token):
        raise ConfigError(PREFIX + "TOKEN", "has characters that no HTTP header can carry; use printable ASCII only")
    return token


def _require(env: Reader, mode: str, token: str) -> frozenset[str]:
    variable = PREFIX + "REQUIRE"
    wanted = frozenset(part.lower() for part in env.listed("REQUIRE"))
    for part in sorted(wanted):
        if part not in REQUIREMENTS:
            raise ConfigError(variable, f"unknown requirement '{safe(part)}'; write some of {', '.join(REQUIREMENTS)}")
    if "token" in wanted and not token:
        raise ConfigError(variable, f"asks for a token, but {PREFIX}TOKEN is not set; set it")
    for part in ("nft", "raw"):
        if part in wanted and mode == "dns":
            raise ConfigError(variable, f"asks for {part}, which {PREFIX}MODE=dns does not hold; write dns+nft there")
    return wanted


def _sni(env: Reader, mode: str) -> tuple[bool, bool]:
    """Whether the name guard is on, and whether it lets an encrypted ClientHello pass."""
    on = env.choice("SNI", "off", "enforce")
    if on and mode == "dns":
        raise ConfigError(PREFIX + "SNI", f"asks for enforce, which {PREFIX}MODE=dns cannot hold; write dns+nft there")
    return on, env.choice("SNI_ECH", "refuse", "pass")


def _level(env: Reader) -> str:
    text = env.text("LOG_LEVEL").lower() or "info"
    text = {"warning": "warn"}.get(text, text)
    if text not in LEVELS:
        raise ConfigError(PREFIX + "LOG_LEVEL", f"unknown level '{safe(text)}'; write one of {', '.join(LEVELS)}")
    return text


def _path(env: Reader, name: str, default: str) -> str:
    path = env.text(name) or default
    if not path:
        return ""
    if "\0" in path or path.endswith("/"):
        raise ConfigError(PREFIX + name, f"'{safe(path)}' is not the path of a file")
    clean = "/" + normpath(path).lstrip("/") if path.startswith("/") else normpath(path)
    if clean == SHARED_VOLUME or clean.startswith(SHARED_VOLUME + "/"):
        raise ConfigError(
            PREFIX + name,
            f"'{safe(path)}' lies below {SHARED_VOLUME}, which the sandbox can write; choose another folder",
        )
    if name == "SOCKET" and (not path.startswith("/") or len(path.encode("utf-8", "surrogateescape")) > 107):
        raise ConfigError(PREFIX + name, "must be an absolute path of at most 107 bytes")
    return path


def _listen(variable: str, text: str) -> Endpoint:
    hint = "write :18080, 127.0.0.1:18080 or [::1]:18080"
    host, port = split_port(variable, text)
    if port is None:
        raise ConfigError(variable, f"'{safe(text)}' has no port; {hint}")
    if not host and text.startswith(":"):
        return Endpoint(b"", read_port(variable, port))
    packed = pack("127.0.0.1" if host.lower() == "localhost" else host)
    if packed is None:
        raise ConfigError(variable, f"'{safe(host)}' is not an address; {hint}")
    return Endpoint(packed, read_port(variable, port))


def _upstreams(env: Reader, resolv_conf: str, warnings: list[str]) -> tuple[Endpoint, ...]:
    variable = PREFIX + "DNS_UPSTREAM"
    found: list[Endpoint] = []
    for part in env.listed("DNS_UPSTREAM"):
        host, port = split_port(variable, part)
        packed = pack(host)
        if packed is None:
            raise ConfigError(
                variable,
                f"'{safe(part)}' is not an IP address; write literals such as 192.0.2.53 or [2001:db8::53]:5353",
            )
        problem = unusable(packed)
        if problem:
            raise ConfigError(variable, f"'{safe(part)}' {problem}; name a resolver outside the sandbox")
        found.append(Endpoint(packed, 53 if port is None else read_port(variable, port)))
    if found:
        return _unique(found)
    skipped: list[str] = []
    for line in resolv_conf.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        packed = pack(words[1])
        if packed is None or unusable(packed):
            skipped.append(safe(words[1]))
        else:
            found.append(Endpoint(packed, 53))
    if not found:
        reason = "names no resolver"
        if skipped:
            reason = f"names only {', '.join(skipped[:3])}, which cannot be used from beside a sandbox"
        if any(name.startswith("127.") or name == "::1" for name in skipped):
            reason = (
                f"names only {', '.join(skipped[:3])} (loopback, such as Docker's 127.0.0.11), where the sandbox "
                "shares the network and could answer in its place"
            )
        raise ConfigError(variable, f"must be set, because /etc/resolv.conf {reason}; write the resolver's IP address")
    if skipped:
        warnings.append(
            f"/etc/resolv.conf: {', '.join(skipped[:3])} cannot be used as an upstream resolver and is skipped"
        )
    return _unique(found)


def _exempt(env: Reader) -> tuple[bytes, ...]:
    variable = PREFIX + "NAMESERVER_EXEMPT"
    found: list[bytes] = []
    for part in env.listed("NAMESERVER_EXEMPT"):
        packed = pack(part)
        if packed is None:
            raise ConfigError(variable, f"'{safe(part)}' is not an IP address; write literal addresses without ports")
        problem = unusable(packed)
        if problem and "loopback" not in problem and "link-local" not in problem:
            raise ConfigError(variable, f"'{safe(part)}' {problem}; name a resolver's address")
        found.append(packed)
    return _unique(found)


def _probe(env: Reader) -> str:
    text = env.text("DNS_UPSTREAM_PROBE").lower()
    if text in ("", "."):
        return ""
    if not is_host(text):
        raise ConfigError(PREFIX + "DNS_UPSTREAM_PROBE", f"'{safe(text)}' is not a name; write one, or . for the root")
    return text.removesuffix(".")


def _attributes(env: Reader) -> tuple[tuple[str, str], ...]:
    variable = PREFIX + "METRICS_EXTRA_ATTRS"
    found: dict[str, str] = {}
    env.printable("METRICS_EXTRA_ATTRS", 4096)
    for part in env.listed("METRICS_EXTRA_ATTRS"):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(variable, f"'{safe(part)}' is no pair; write key=value,key=value")
        found[key.strip()] = value.strip()
    return tuple(found.items())


def _otlp(environ: Mapping[str, str]) -> Url | None:
    for variable in _OTLP:
        text = environ.get(variable, "").strip()
        if not text:
            continue
        url = parse_url(variable, text)
        if variable == _OTLP[1]:  # the OTLP exporter specification: the signal's path is added to the general endpoint
            path = url.target.partition("?")[0].rstrip("/")
            url = url._replace(target=path + "/v1/metrics")
        return url
    return None


def _otlp_interval(environ: Mapping[str, str]) -> float:
    """Seconds; the variable is in milliseconds (OpenTelemetry's environment variable specification)."""
    text = environ.get(_INTERVAL, "").strip() or "30000"
    if not DIGITS.fullmatch(text) or not 100 <= int(text) <= 86_400_000:
        raise ConfigError(_INTERVAL, f"'{safe(text)}' is not a whole number of milliseconds from 100 to 86400000")
    return int(text) / 1000


def _name_budget(env: Reader) -> Limits:
    octets = env.integer("NAME_BUDGET", NAME_OCTETS, 0, _MOST_OCTETS)
    return Limits(
        octets,
        env.integer("NAME_BUDGET_ALL", octets * SHARES, 0, _MOST_OCTETS),
        env.integer("NAME_BUDGET_RATE", RATE, 0, 1_000_000),
    )


def _search(resolv_conf: str) -> tuple[str, ...]:
    """The last line of `search` or `domain` counts (resolv.conf(5)); what is no name is no search domain."""
    found: list[str] = []
    for line in resolv_conf.splitlines():
        words = line.split()
        if words and words[0] in ("search", "domain"):
            found = words[1:]
    return _unique(word.lower().removesuffix(".") for word in found if is_host(word.lower()))


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
