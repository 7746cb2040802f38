"""The flags that `egress inject` and `egress webhook` share: what the operator decides about the sidecar."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from egress.commands.output import CommandError

if TYPE_CHECKING:
    import argparse

    from egress.kubernetes.settings import Reference, Settings

IMAGE = "SALLYPORT_EGRESS_IMAGE"
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")


def add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--image", default=os.environ.get(IMAGE, "") or "sallyport-egress", help=f"the sidecar's image (or {IMAGE})")
    add("--pull-policy", choices=("Always", "IfNotPresent", "Never"), default="", help="when the image is pulled")
    add("--port", default="18080", help="port of the sidecar's control API (default 18080)")
    add("--dns-upstream", metavar="ADDRESS[,...]", default="", help="resolvers, instead of the pod's own")
    add("--token-from", metavar="secret/NAME[/KEY]", default="",
        help="a Secret in the pod's namespace with the token for changing the policy (key: token)")  # fmt: skip
    add("--requests", metavar="R=Q,...", default="cpu=10m,memory=64Mi", help="default cpu=10m,memory=64Mi")
    add("--limits", metavar="R=Q,...", default="memory=256Mi", help="default memory=256Mi; nothing: no limits")
    add("--env", metavar="NAME=VALUE", action="append", default=[],
        help="another of the sidecar's variables, as in docs/egress.md; may be given again")  # fmt: skip


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the flags spell. Raises CommandError."""
    from egress.kubernetes.settings import Settings

    if not _IMAGE.fullmatch(options.image):
        raise CommandError(f"--image: {options.image!r} is no image's name")
    if not options.port.isdecimal() or not 1 <= int(options.port) <= 65535:
        raise CommandError(f"--port: {options.port!r} is no port; write a number from 1 to 65535")
    return Settings(
        image=options.image,
        pull_policy=options.pull_policy,
        port=int(options.port),
        upstreams=_upstreams(options.dns_upstream),
        token=_token(options.token_from),
        requests=_resources("--requests", options.requests),
        limits=_resources("--limits", options.limits),
        variables=_variables(options.env),
    )


_OURS = ("RULES", "POLICY_FILE", "TOKEN", "MODE", "REQUIRE", "HTTP_ADDR", "SOCKET", "SANDBOX_ID", "DNS_UPSTREAM")


def _variables(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """As the sidecar will read them: what it would refuse, or not know, is refused here."""
    from egress.config import PREFIX, ConfigError, from_env

    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith((PREFIX, "OTEL_")):
            raise CommandError(f"--env: {text!r}: write it like {PREFIX}LOG_LEVEL=warn")
        if name.removeprefix(PREFIX) in _OURS:
            raise CommandError(f"--env: {name} is set by the injection itself; see the other flags")
        found[name] = value
    try:
        warnings = from_env(found, "nameserver 192.0.2.53").warnings
    except ConfigError as error:
        raise CommandError(f"--env: {error}") from None
    unknown = [warning for warning in warnings if warning.startswith("unknown variables")]
    if unknown:
        raise CommandError(f"--env: {unknown[0]}")
    return tuple(found.items())


def _upstreams(text: str) -> str:
    """As `egress serve` will read it, at a time when somebody can still do something about it."""
    if not text:
        return ""
    from egress.config import PREFIX, ConfigError, from_env

    try:
        from_env({PREFIX + "DNS_UPSTREAM": text}, "")
    except ConfigError as error:
        raise CommandError(f"--dns-upstream: {error.problem}") from None
    return text


def _token(text: str) -> Reference | None:
    from egress.kubernetes.policy import TOKEN_KEY
    from egress.kubernetes.settings import parse_reference

    found = parse_reference(text, ("secret",), TOKEN_KEY) if text else None
    if text and found is None:
        raise CommandError(f"--token-from: {text!r}: write secret/NAME or secret/NAME/KEY")
    return found


def _resources(flag: str, text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in filter(None, text.split(",")):
        name, _, quantity = part.strip().partition("=")
        if name not in _RESOURCES or not _QUANTITY.fullmatch(quantity):
            raise CommandError(f"{flag}: {part!r}: write it like cpu=10m,memory=64Mi")
        found.append((name, quantity))
    return tuple(found)
