"""Every flag of `ingress serve` with its default and its words, in the groups and the order that `--help` has."""

from __future__ import annotations

from ingress.settings.flags import Flag
from ingress.settings.limits import Limits

MODES = ("header", "host", "uri", "header+uri", "host+uri", "agent-sandbox")
LEVELS = ("debug", "info", "warn", "error")

_LISTENING = (
    Flag("port", "PORT", "28888", "where sandboxes are reached (8080 with --mode agent-sandbox)"),
    Flag("host", "ADDRESS", "", "the address to listen on; without it every one, v4 and v6"),
    Flag("admin-port", "PORT", "28889", "/livez, /readyz, /metrics and /status.ok; 0: none"),
    Flag("admin-host", "ADDRESS", "", "the address of the admin port; without it that of --host"),
    Flag("admin-only", "", "", "/status.ok on the admin port only, not on the main one too"),
    Flag("workers", "N", "auto", "worker processes; auto: one for each core that may be used"),
    Flag("tls-cert", "FILE", "", "serve HTTPS with this certificate and its chain, PEM; followed when it changes"),
    Flag("tls-key", "FILE", "", "its key, PEM, not encrypted"),
    Flag("proxy-protocol-from", "CIDR,...", "", "peers that send a PROXY v1 or v2 header first; they have to"),
    Flag("trusted-proxies", "CIDR,...", "", "peers whose X-Forwarded-* headers are believed"),
    Flag("handover", "PATH", "", "a unix socket: whoever starts with the same one takes over from the one before"),
)
_ROUTING = (
    Flag(
        "mode",
        "MODE",
        "header",
        "header (or host name), host, uri (path), header+uri, host+uri, or agent-sandbox: that router's wire",
    ),
    Flag("provider-type", "TYPE", "static", "where sandboxes are found: static, docker, batchsandbox, agent-sandbox"),
    Flag("routes", "FILE", "", "static: the sandboxes, YAML or JSON; followed when it changes"),
    Flag(
        "docker-host",
        "ADDRESS",
        "",
        "docker: the daemon's socket, unix:///var/run/docker.sock by default",
        ("DOCKER_HOST",),
    ),
    Flag("docker-network", "NAME", "", "docker: the network whose addresses are used where a container has several"),
    Flag("docker-published", "ADDRESS", "", "docker: reach containers by their published ports, at this address"),
    Flag("kubeconfig", "FILE", "", "Kubernetes from outside a cluster; without it in-cluster", ("KUBECONFIG",)),
    Flag("kube-context", "NAME", "", "the context in it; without it the current one"),
    Flag("watch-namespaces", "NAME,...", "", "Kubernetes: only these namespaces; without it all"),
    Flag("keep-routes", "TIME", "1d", "how long the last routes go on when their source is gone; 0: for good"),
    Flag("namespace", "NAME", "", "accepted for OpenSandbox's sake and ignored: all namespaces are watched"),
    Flag(
        "allow-target",
        "CIDR,...",
        "",
        "addresses that a sandbox may have although they are loopback or link-local, such as 127.0.0.0/8",
    ),
    Flag("upstream-host", "NAME", "", "the Host that applications see, such as localhost; without it as sent"),
    Flag("route-cookie", "", "", "path mode: a cookie that finds the sandbox for an application's absolute links"),
)
_ACCESS = (
    Flag(
        "secure-access-keys",
        "a=BASE64,...",
        "",
        "keys of signed routes, by their one-character ids",
        ("OPENSANDBOX_SECURE_ACCESS_KEYS",),
    ),
    Flag("secure-access-keys-file", "FILE", "", "the same in a file, one a line or with commas; followed"),
)
_RENEWAL = (
    Flag("renew-intent-enabled", "", "", "tell Redis which sandboxes are in use"),
    Flag("renew-intent-redis-dsn", "URL", "redis://127.0.0.1:6379/0", "which Redis"),
    Flag("renew-intent-queue-key", "KEY", "opensandbox:renew:intent", "the list's key"),
    Flag("renew-intent-queue-max-len", "N", "0", "the list's cap; 0: none"),
    Flag("renew-intent-min-interval", "TIME", "60", "at most one intent a sandbox in so long"),
)
_LOGS = (
    Flag("log-level", "LEVEL", "info", "debug, info, warn or error"),
    Flag("access-log", "", "", "a line for each request"),
    Flag("access-log-sample", "SHARE", "1", "which share of them, 0 to 1; errors of the gateway's own always"),
    Flag("access-log-query", "", "", "with the query of each request, which may hold secrets of the application"),
)
_LIFE = (
    Flag("drain", "TIME", "30s", "after SIGTERM: how long open responses and streams may go on"),
    Flag("drain-delay", "TIME", "0s", "after SIGTERM: how long connections are still taken, while /readyz says 503"),
    Flag("wait-ready", "TIME", "0s", "how long a request waits for a sandbox that is known but not ready; 0: 503"),
)

_LIMITS = (
    ("head-bytes", "SIZE", "64k", "a request's or response's head; above it 431, or 502"),
    ("head-fields", "N", "", "fields in a head; above it 431, or 502"),
    ("body-bytes", "SIZE", "", "a request's body; above it 413; 0: any"),
    ("connections", "N", "", "client connections of one worker; above it 503"),
    ("connections-per-sandbox", "N", "", "connections to one sandbox, WebSockets included; above it 503"),
    ("inflight-per-sandbox", "N", "", "requests under way to one sandbox; above it 429"),
    ("idle-per-endpoint", "N", "", "idle connections kept for one port of one sandbox"),
    ("buffer-bytes", "SIZE", "256k", "what may wait in one direction of one connection"),
    ("head-timeout", "TIME", "10s", "from a request's first octet to the end of its head; 408"),
    ("idle-timeout", "TIME", "75s", "a client's connection between two requests"),
    ("body-timeout", "TIME", "60s", "a request's body, or a client that should read, without progress"),
    ("connect-timeout", "TIME", "5s", "opening a connection to a sandbox; 504"),
    ("response-timeout", "TIME", "2h", "from the end of a request to the head of its response; 504; 0: none"),
    ("stream-timeout", "TIME", "1h", "a response's body without an octet; 0: none"),
    ("tunnel-timeout", "TIME", "1h", "a WebSocket without an octet in either direction; 0: none"),
    ("upstream-idle", "TIME", "4s", "how long an idle connection to a sandbox is kept"),
)

GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("listening", _LISTENING),
    ("routing", _ROUTING),
    ("access", _ACCESS),
    ("life", _LIFE),
    ("logs", _LOGS),
    ("renew intents", _RENEWAL),
    (
        "limits and time-outs",
        tuple(
            Flag(name, value, default or str(Limits._field_defaults[name.replace("-", "_")]), about)
            for name, value, default, about in _LIMITS
        ),
    ),
)
FLAGS = tuple(flag for _, flags in GROUPS for flag in flags)

EXAMPLES = """\
try it:
  ingress serve
      looks for sandboxes in a file, says where and what it found; curl -H 'OpenSandbox-Ingress-To: box-8000' ...
  ingress serve --routes routes.yaml --mode header+uri --allow-target 127.0.0.0/8
      on a laptop: http://localhost:28888/box/8000/ leads to port 8000 of the sandbox "box", which may be on loopback
  ingress serve --provider-type docker --mode uri
      every container that says so by its labels
  ingress serve --provider-type batchsandbox --mode header --secure-access-keys a=BASE64
      as OpenSandbox's own gateway is started
  ingress serve --tls-cert tls.crt --tls-key tls.key --port 443 --handover /run/sallyport/ingress.sock
      started a second time, it takes the port over without a refused connection
"""


def usage() -> str:
    """The whole of `ingress serve --help`."""
    lines = [
        "usage: ingress serve [FLAG ...]",
        "",
        "Lead HTTP and WebSocket traffic from outside to a sandbox's port, until SIGTERM.",
        "",
        "Every flag is also a variable: --admin-port is SALLYPORT_INGRESS_ADMIN_PORT; the flag wins. One dash or two,",
        "with a blank or with =. Times: 10s, 5m, 1h30m or seconds; sizes: octets, 64k, 10m, 1g.",
    ]
    for title, flags in GROUPS:
        lines += ["", f"{title}:"]
        for flag in flags:
            left = f"  --{flag.name} {flag.value}".rstrip()
            default = f" [{flag.default}]" if flag.default else ""
            also = f" (also {', '.join(flag.variables)})" if flag.variables else ""
            lines += _wrapped(left, f"{flag.about}{default}{also}")
    lines += [
        "",
        "With --mode agent-sandbox the variables of Kubernetes agent-sandbox's router count too: ROUTER_AUTH_TOKEN,",
        "ALLOW_UNAUTHENTICATED_ROUTER, PROXY_TIMEOUT_SECONDS [180], CLUSTER_DOMAIN, MAX_KEEPALIVE_CONNECTIONS,",
        "TRUSTED_PROXY_CIDRS and WEBSOCKET_IDLE_TIMEOUT_SECONDS; and --wait-ready is 2s.",
        "",
        EXAMPLES.rstrip(),
        "",
        "signals: SIGTERM drains and leaves with exit code 0, a second one leaves at once; SIGHUP reads keys and",
        "certificates again. exit code: 2 when a setting is wrong (nothing listens then), 1 when it could not go on.",
    ]
    return "\n".join(lines) + "\n"


def _wrapped(left: str, about: str, indent: int = 34, width: int = 118) -> list[str]:
    lines = []
    if len(left) > indent - 2:
        lines.append(left)
        left = ""
    words = about.split(" ")
    line = left.ljust(indent)
    for word in words:
        if len(line) + len(word) > width:
            lines.append(line.rstrip())
            line = " " * indent
        line += word + " "
    return [*lines, line.rstrip()]
