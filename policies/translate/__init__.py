"""Other systems' egress settings into our policies: one module each, all pure.

A translation is never wider than its source. What our language cannot say is left out and named (`gaps`: the policy is
narrower there); what it can only say wider is left out too, unless somebody asked for the wider form, and then it is
named (`widened`); a denial that it cannot say stops the translation, because without it everything else may be wider.

    text ─▶ translate ─▶ Draft: allow, deny, gap, wider, note ─▶ Translation
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from policies.translate.draft import Options, Translation

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SYSTEMS", "Options", "Translation", "translate"]

SYSTEMS = {
    "open-brain": "Open Brain's config/settings.yaml: security.sandbox.network",
    "kubernetes": "NetworkPolicy manifests: egress",
    "cilium": "CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy manifests: egress, egressDeny",
    "devcontainer": "the init-firewall.sh of a development container",
    "docker-sandbox": "Docker sandboxes: sbx policy commands, or rules as its governance API has them",
    "sandbox-runtime": "settings of sandbox-runtime and Claude Code: network.allowedDomains and deniedDomains",
    "e2b": "E2B's options: allowInternetAccess, network.allowOut and denyOut",
    "hosts": "a plain list: names, wildcards, networks, host:port or URLs, one a line",
}


def translate(system: str, text: str, options: Options | None = None) -> Translation:
    """Translate a text of one of `SYSTEMS`. Raises PolicyError with the place of what is no such text."""
    module = import_module(f"policies.translate.{system.replace('-', '_')}")
    work: Callable[[str, Options], Translation] = module.translate
    return work(text, options or Options())
