"""`egress webhook`: what `egress inject` does, as a mutating admission webhook."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from typing import TYPE_CHECKING

from egress.commands.output import GOOD, CommandError, Outcome, Parser, reason_of, run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from egress.kubernetes.certificate import Certificate
    from egress.kubernetes.review import Verdict
    from egress.log import Log
    from policies.model import NetworkPolicy

_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

EPILOG = """\
examples:
  egress webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key
      POST /mutate answers admission.k8s.io/v1 reviews of pods; GET /healthz and /readyz are for probes
  egress webhook --policy web-only
      for pods that name no policy of their own; without it they reach nothing
  egress webhook --policy-for builds=package-installs --policy-for agents=/policies/agents.yaml
      the same by namespace
  SALLYPORT_EGRESS_IMAGE=registry.example.com/sallyport-egress:1.2 egress webhook

The manifests are in deploy/kubernetes/webhook. It needs no privilege, no access to the Kubernetes API and nothing
writable. The certificate's files are followed: a new pair serves new connections, one that cannot be used is reported
while the old one serves on. SIGTERM: /readyz says 503, new connections end after --drain-delay, then what is under way
is answered. Log: one JSON object a line on standard output.

exit code: 0 stopped, 2 a setting is wrong.
"""


def main(argv: list[str]) -> int:
    """Serve until SIGTERM; returns the exit code."""
    return run("webhook", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.commands.injecting import settings_of
    from egress.commands.reading import load
    from egress.kubernetes.certificate import Certificate, CertificateError
    from egress.kubernetes.review import judge
    from egress.log import Log

    settings = settings_of(options)
    if options.policy:
        settings = settings._replace(policy=load(options.policy))
    policies = dict(map(_policy_for, options.policy_for))
    delay = _seconds(options.drain_delay)
    try:
        certificate = Certificate(options.tls_cert, options.tls_key)
    except CertificateError as error:
        raise CommandError(f"--tls-cert, --tls-key: {error}") from None
    with _listen(options.listen) as listener:
        asyncio.run(
            _serve(
                listener,
                certificate,
                lambda body: judge(body, settings, policies),
                Log(level=options.log_level, fields={"image": settings.image}),
                delay,
            )
        )
    return Outcome(GOOD)


async def _serve(
    listener: socket.socket, certificate: Certificate, answer: Callable[[bytes], Verdict], log: Log, delay: float
) -> None:  # fmt: skip
    from egress.kubernetes.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    log.info("listening", address=host, port=port)
    server = Server(certificate, answer, log)
    await server.serve(listener, stop, delay, drain=10.0)
    log.info("stopped")


def _listen(text: str) -> socket.socket:
    from egress.literals import ConfigError, pack, read_port, safe, split_port

    try:
        host, port_text = split_port("--listen", text)
        port = 0 if port_text == "0" else read_port("--listen", port_text or "")
    except ConfigError as error:
        raise CommandError(f"--listen: {error.problem}") from None
    packed = pack(host) if host else b""
    if packed is None:
        raise CommandError(f"--listen: '{safe(host)}' is not an address; write :8443, 127.0.0.1:8443 or [::1]:8443")
    try:
        if host:
            family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
            return socket.create_server((host, port), family=family, backlog=128)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        return socket.create_server(("0.0.0.0", port), backlog=128)
    except OSError as error:
        raise CommandError(f"--listen: port {port}: {reason_of(error)}") from None


def _policy_for(text: str) -> tuple[str, NetworkPolicy]:
    from egress.commands.reading import load

    namespace, equals, name = text.partition("=")
    if not equals or not _NAMESPACE.fullmatch(namespace):
        raise CommandError(f"--policy-for: {text!r}: write it like builds=package-installs")
    return namespace, load(name)


def _seconds(text: str) -> float:
    if not text.isdecimal() or len(text) > 3:
        raise CommandError(f"--drain-delay: {text!r}: write seconds, 0 to 999")
    return float(text)


def _parser() -> Parser:
    from egress.commands.injecting import add_settings

    parser = Parser(
        "egress webhook",
        "egress webhook [OPTION ...]",
        "Put the sidecar into pods as they are created: a mutating admission webhook.",
        EPILOG,
    )
    add = parser.add_argument
    add("--listen", metavar="[ADDRESS]:PORT", default=":8443", help="default :8443")
    add("--tls-cert", metavar="FILE", default="/tls/tls.crt", help="the certificate with its chain, PEM")
    add("--tls-key", metavar="FILE", default="/tls/tls.key", help="its key, PEM, not encrypted")
    add("--policy", metavar="FILE|PRESET", default="", help="for pods without an annotation (default: deny all)")
    add("--policy-for", metavar="NAMESPACE=FILE|PRESET", action="append", default=[],
        help="the same for one namespace; may be given again")  # fmt: skip
    add("--drain-delay", metavar="SECONDS", default="5", help="how long connections are taken after SIGTERM")
    add("--log-level", choices=("debug", "info", "warn", "error"), default="info", help="default info")
    add_settings(parser)
    return parser
