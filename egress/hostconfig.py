"""Settings of a guard that works from outside: defaults, with the resolvers of this host and a few of the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.config import Config, ConfigError, Endpoint, from_env
from egress.literals import pack

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED_SETTINGS = frozenset(
    {
        "OPENSANDBOX_EGRESS_DNS_UPSTREAM",
        "OPENSANDBOX_EGRESS_DNS_UPSTREAM_TIMEOUT",
        "OPENSANDBOX_EGRESS_BLOCK_DOH_443",
        "OPENSANDBOX_EGRESS_DOH_BLOCKLIST",
        "OPENSANDBOX_EGRESS_NAME_BUDGET",
        "OPENSANDBOX_EGRESS_NAME_BUDGET_ALL",
        "OPENSANDBOX_EGRESS_NAME_BUDGET_RATE",
        "OPENSANDBOX_EGRESS_LOG_LEVEL",
    }
)
"""Variables of `egress serve` that mean the same here."""
_SNI = "OPENSANDBOX_EGRESS_SNI"  # whoever asks for that must not believe to have it


def host_config(environ: Mapping[str, str]) -> Config:
    """The settings. The host's loopback counts as a place for resolvers: they are asked from here. Without any, the one
    that the resolver library itself would try (resolv.conf(5)). Raises ConfigError."""
    if environ.get(_SNI, "").strip().lower() not in ("", "off"):
        raise ConfigError(_SNI, "is for `egress serve`; a guard from outside asks connections for no names; unset it")
    text = resolv_conf()
    found = [Endpoint(packed, 53) for server in nameservers(text) if (packed := pack(server)) is not None]
    own = {name: value for name, value in environ.items() if name in PASSED_SETTINGS}
    if "OPENSANDBOX_EGRESS_DNS_UPSTREAM" in own:
        return from_env(own, "")
    config = from_env({**own, "OPENSANDBOX_EGRESS_DNS_UPSTREAM": "192.0.2.53"}, "")
    return config._replace(upstreams=tuple(dict.fromkeys(found)) or (Endpoint(bytes((127, 0, 0, 1)), 53),))


def resolv_conf(path: str = "/etc/resolv.conf") -> str:
    """Its text, "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def nameservers(text: str) -> list[str]:
    """The resolvers that a resolv.conf names, as they are written there."""
    lines = [line.split() for line in text.splitlines()]
    return [words[1] for words in lines if len(words) >= 2 and words[0] == "nameserver"]
