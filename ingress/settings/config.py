"""The gateway's settings: one frozen value, read once from the flags and the environment. Pure.

Everything that an operator can get wrong in a value ends here, before anything listens, as one `ConfigError`: a single
line that names the flag or the variable and says what to write instead. What lies in files (keys, certificates) is
looked at by whoever needs it, before anything listens as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ingress.providers import TYPES, ProviderSettings
from ingress.settings.flags import ConfigError, Reader, networks, safe, truth, whole
from ingress.settings.limits import Limits
from ingress.settings.table import FLAGS, LEVELS, MODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from policies.address import Network

__all__ = ["AgentRouter", "Config", "ConfigError", "fit", "from_args"]

_DAY = 86_400.0
_WAYS = {"header": ("header", "host"), "host": ("host",), "wildcard": ("host",), "uri": ("uri",)}
_SIZES = ("head_bytes", "body_bytes", "buffer_bytes")
_MAY_BE_ZERO = ("response_timeout", "stream_timeout", "tunnel_timeout", "wait_ready", "drain", "upstream_idle")
_MOST = 1 << 40  # octets
SPARE = 256
"""File descriptors that are left for everything but connections, and for idle ones to sandboxes."""


class AgentRouter(NamedTuple):
    """What `--mode agent-sandbox` adds: the settings of Kubernetes agent-sandbox's router, from its own variables."""

    token: str  # the bearer token callers need; "": none, on purpose
    timeout: float  # seconds, the most that a caller may ask for
    cluster_domain: str  # "": as the sandboxes say


class Config(NamedTuple):
    """Every setting of the gateway, checked. Paths and names are "" where there is none."""

    mode: str  # as it was written
    ways: frozenset[str]  # of "header", "host" and "uri"; empty in agent-sandbox mode
    agent: AgentRouter | None
    port: int  # 0: the kernel's choice
    host: str  # "": every address, v4 and v6
    admin_port: int | None  # None: none; 0: the kernel's choice
    admin_host: str
    admin_only: bool
    workers: int  # 0: one for each core
    tls_cert: str
    tls_key: str
    proxy_protocol_from: tuple[Network, ...]
    trusted_proxies: tuple[Network, ...]
    handover: str
    provider_type: str
    provider: ProviderSettings
    allow_target: tuple[Network, ...]
    upstream_host: str
    route_cookie: bool
    secure_access_keys: str  # raw: access.py reads it
    secure_access_keys_from: str  # the flag or variable that it came from, for an error
    secure_access_keys_file: str
    renew_enabled: bool
    renew_dsn: str
    renew_key: str
    renew_max_len: int
    renew_interval: float
    log_level: str
    access_log: bool
    access_log_sample: float
    access_log_query: bool
    drain_delay: float
    limits: Limits
    warnings: tuple[str, ...]  # to be logged once at start


def from_args(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read the settings; ConfigError for the first that cannot be used."""
    read = Reader(FLAGS, argv, environ)
    mode = read.text("mode").lower()
    ways = _ways(*read.find("mode")) if mode != "agent-sandbox" else frozenset()
    agent = None if ways else _agent(environ)
    warnings = read.warn_unknown()
    trusted = read.networks("trusted-proxies")
    if read.given("namespace"):
        warnings.append("--namespace is accepted and ignored; --watch-namespaces narrows what is watched")
    certificate, key = read.path("tls-cert"), read.path("tls-key")
    if bool(certificate) != bool(key):
        missing = "tls-key" if certificate else "tls-cert"
        raise ConfigError(f"--{missing}", "is missing; a certificate and its key come together")
    port = read.integer("port", 0, 65535) if ways or read.given("port") else 8080
    admin_port = _admin_port(read, port)
    host = read.address("host")
    provider = read.choice("provider-type", TYPES)
    if agent is not None and not read.given("provider-type"):
        provider = "agent-sandbox"
    if read.given("routes") and provider != "static":
        raise ConfigError(read.find("routes")[0], f"is for --provider-type static, and this is {provider}")
    keys_from, keys = read.find("secure-access-keys")
    keys_file = read.path("secure-access-keys-file")
    if keys and keys_file:
        raise ConfigError(keys_from, "and --secure-access-keys-file exclude each other; put every key in the file")
    limits = _limits(read)
    if agent is not None:
        limits = _agent_limits(limits, read, environ)
        trusted = trusted or networks("TRUSTED_PROXY_CIDRS", environ.get("TRUSTED_PROXY_CIDRS", "").strip())
        warnings += _agent_warnings(agent, environ)
    return Config(
        mode=mode,
        ways=ways,
        agent=agent,
        port=port,
        host=host,
        admin_port=admin_port,
        admin_host=read.address("admin-host") if read.given("admin-host") else host,
        admin_only=_admin_only(read, admin_port),
        workers=0 if read.text("workers").lower() == "auto" else read.integer("workers", 1, 1024),
        tls_cert=certificate,
        tls_key=key,
        proxy_protocol_from=read.networks("proxy-protocol-from"),
        trusted_proxies=trusted,
        handover=_socket_path(read),
        provider_type=provider,
        provider=ProviderSettings(
            routes_file=read.path("routes"),
            docker_host=read.text("docker-host"),
            docker_network=read.text("docker-network"),
            docker_published=read.address("docker-published") if read.given("docker-published") else "",
            kubeconfig=read.path("kubeconfig"),
            kube_context=read.text("kube-context"),
            namespaces=_namespaces(read),
            keep=read.duration("keep-routes", 0, 365 * _DAY),
        ),
        allow_target=read.networks("allow-target"),
        upstream_host=_upstream_host(read),
        route_cookie=read.boolean("route-cookie"),
        secure_access_keys=keys,
        secure_access_keys_from=keys_from,
        secure_access_keys_file=keys_file,
        renew_enabled=read.boolean("renew-intent-enabled"),
        renew_dsn=_redis(read),
        renew_key=read.text("renew-intent-queue-key"),
        renew_max_len=read.integer("renew-intent-queue-max-len", 0, 1_000_000_000),
        renew_interval=read.duration("renew-intent-min-interval", 0, _DAY),
        log_level=read.choice("log-level", (*LEVELS, "warning")).replace("warning", "warn"),
        access_log=read.boolean("access-log"),
        access_log_sample=read.number("access-log-sample", 0, 1),
        access_log_query=read.boolean("access-log-query"),
        drain_delay=read.duration("drain-delay", 0, 3600),
        limits=limits,
        warnings=tuple(warnings),
    )


def fit(config: Config, descriptors: int) -> Config:
    """The same for a process that may have so many file descriptors: a client needs two, one of them to its sandbox.

    Where they are fewer than --connections asks for, that is lowered, so that who is too many is told so.
    """
    most = max(8, (descriptors - SPARE) // 2)
    if config.limits.connections <= most:
        return config
    words = f"--connections is {most} for want of file descriptors ({descriptors} a process); raise ulimit -n"
    return config._replace(limits=config.limits._replace(connections=most), warnings=(*config.warnings, words))


def _ways(where: str, text: str) -> frozenset[str]:
    found: set[str] = set()
    for token in (text or "header").lower().split("+"):
        if token.strip() not in _WAYS:
            raise ConfigError(where, f"'{safe(text)}' is not known; write {', '.join(MODES[:-1])} or {MODES[-1]}")
        found.update(_WAYS[token.strip()])
    return frozenset(found)


def _admin_port(read: Reader, port: int) -> int | None:
    where, text = read.find("admin-port")
    if text.lower() == "any":  # for tests, and for whoever reads the port from the log
        return 0
    number = read.integer("admin-port", 0, 65535)
    if number == port and number:
        raise ConfigError(where, f"{number} is the main port as well; choose another, or 0 for none")
    return number or None


def _admin_only(read: Reader, admin_port: int | None) -> bool:
    only = read.boolean("admin-only")
    if only and admin_port is None:
        raise ConfigError(read.find("admin-only")[0], "needs an admin port; leave --admin-port 0 out")
    return only


def _socket_path(read: Reader) -> str:
    where, path = read.find("handover")
    if len(path.encode()) > 90:  # sun_path holds 108, and a temporary name beside it has to fit too
        raise ConfigError(where, "is too long for a unix socket; use a path of at most 90 octets")
    return read.path("handover")


def _upstream_host(read: Reader) -> str:
    where, text = read.find("upstream-host")
    if text and not re.fullmatch(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", text):
        raise ConfigError(where, f"'{safe(text)}' is not a Host; write a name such as localhost or localhost:3000")
    return text


def _namespaces(read: Reader) -> tuple[str, ...]:
    where, text = read.find("watch-namespaces")
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", name):
            raise ConfigError(where, f"'{safe(name)}' is not a namespace's name; write lower case letters, digits, -")
    return tuple(dict.fromkeys(names))


def _redis(read: Reader) -> str:
    where, text = read.find("renew-intent-redis-dsn")
    text = text or read.text("renew-intent-redis-dsn")
    if not re.fullmatch(r"(?:rediss?|unix)://[!-~]+", text):  # not quoted: it may hold a password
        raise ConfigError(where, "is not a Redis URL; write it like redis://127.0.0.1:6379/0")
    return text


def _limits(read: Reader) -> Limits:
    values: dict[str, int | float] = {}
    for field, default in Limits._field_defaults.items():
        name = field.replace("_", "-")
        if field in _SIZES:
            low = {"head_bytes": 1024, "buffer_bytes": 4096}.get(field, 0)
            values[field] = read.size(name, low, _MOST if field == "body_bytes" else 1 << 28)
        elif isinstance(default, float):
            values[field] = read.duration(name, 0.0 if field in _MAY_BE_ZERO else 0.05, 7 * _DAY)
        else:
            values[field] = read.integer(name, 0 if field == "idle_per_endpoint" else 1, 10_000_000)
    return Limits(**values)  # type: ignore[arg-type]


# -- agent-sandbox's router ----------------------------------------------------------------------------------------
_AGENT_WAIT = 2.0
"""Seconds for a sandbox that its client has seen ready a moment before we do: its POSTs are not tried again."""
_SHORT = 16
_NOT_HERE = (
    "WEBSOCKET_MAX_LIFETIME_SECONDS",
    "WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT",
    "WEBSOCKET_MAX_MESSAGE_BYTES",
)


def _agent(environ: Mapping[str, str]) -> AgentRouter:
    """Its variables, as its own program reads them."""

    def text(name: str) -> str:
        return environ.get(name, "").strip()

    token = text("ROUTER_AUTH_TOKEN")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError("ROUTER_AUTH_TOKEN", "has characters that no bearer token can carry; use printable ASCII")
    open_door = truth("ALLOW_UNAUTHENTICATED_ROUTER", text("ALLOW_UNAUTHENTICATED_ROUTER") or "false")
    if not token and not open_door:
        raise ConfigError("ROUTER_AUTH_TOKEN", "is not set; set it, or ALLOW_UNAUTHENTICATED_ROUTER=true on purpose")
    timeout = _agent_seconds("PROXY_TIMEOUT_SECONDS", text("PROXY_TIMEOUT_SECONDS") or "180")
    if not timeout:
        raise ConfigError("PROXY_TIMEOUT_SECONDS", "is 0; write a number of seconds above it")
    domain = text("CLUSTER_DOMAIN").strip(".")
    if domain and not re.fullmatch(
        r"(?=.{1,200}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", domain
    ):
        raise ConfigError("CLUSTER_DOMAIN", f"'{safe(domain)}' is not a domain name; write it like cluster.local")
    return AgentRouter(token, timeout, domain)


def _agent_seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,9})?", text):
        raise ConfigError(name, f"'{safe(text)}' is not a number of seconds")
    return float(text)


def _agent_limits(limits: Limits, read: Reader, environ: Mapping[str, str]) -> Limits:
    """Its pool's size and its WebSockets' patience are ours, unless our own flags say otherwise."""
    text = environ.get("MAX_KEEPALIVE_CONNECTIONS", "").strip()
    if text:
        most = whole("MAX_KEEPALIVE_CONNECTIONS", text, 0, 1_000_000)
        if not read.given("idle-per-endpoint"):
            limits = limits._replace(idle_per_endpoint=most)
    text = environ.get("WEBSOCKET_IDLE_TIMEOUT_SECONDS", "").strip()
    if text:
        idle = _agent_seconds("WEBSOCKET_IDLE_TIMEOUT_SECONDS", text)
        if not read.given("tunnel-timeout"):
            limits = limits._replace(tunnel_timeout=idle)
    if not read.given("wait-ready"):
        limits = limits._replace(wait_ready=_AGENT_WAIT)
    return limits


def _agent_warnings(agent: AgentRouter, environ: Mapping[str, str]) -> list[str]:
    warnings = []
    if not agent.token:
        warnings.append("ALLOW_UNAUTHENTICATED_ROUTER: whoever reaches this port reaches every sandbox")
    elif len(agent.token) < _SHORT:
        warnings.append(f"ROUTER_AUTH_TOKEN has fewer than {_SHORT} characters and might be guessed; make it random")
    unknown = [name for name in _NOT_HERE if environ.get(name, "").strip() not in ("", "0")]
    if unknown:
        warnings.append("variables of agent-sandbox's router that have no meaning here, ignored: " + ", ".join(unknown))
    return warnings
