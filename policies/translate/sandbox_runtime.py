"""sandbox-runtime's settings, and Claude Code's, which has them under `sandbox`: `network.allowedDomains` and
`network.deniedDomains`, each with an optional port. Denials win. Its proxies carry TCP and nothing else."""

from __future__ import annotations

from policies.model import PolicyError
from policies.translate.draft import Draft, Options, Translation
from policies.translate.hosts import both, split_port
from policies.translate.tree import Node, read

_OTHERWISE = (
    "allowUnixSockets", "allowAllUnixSockets", "allowLocalBinding", "allowMachLookup", "httpProxyPort",
    "socksProxyPort", "deniedDomainReasons", "parentProxy",
)  # fmt: skip
_LISTS = ("allowedDomains", "deniedDomains")
_NARROWING = {
    "tlsTerminate": "requests may be looked into and refused",
    "mitmProxy": "requests may be looked into and refused",
    "filterRequest": "requests may be looked into and refused",
    "allowManagedDomainsOnly": "only the administrator's domains count, whatever stands here",
}


def translate(text: str, options: Options) -> Translation:
    """Translate a settings file. Raises PolicyError."""
    draft = Draft(options)
    root = read(text)
    node = root.members("settings such as {network: {allowedDomains: []}}")
    if "sandbox" in node:
        _permissions(draft, node.get("permissions"))
        sandbox = node["sandbox"]
        node = sandbox.members()
        if "enabled" in node and not node["enabled"].flag():
            draft.note(node["enabled"].path, "the sandbox is off there; translated as if it were on")
        root = sandbox
    if "network" not in node:
        raise PolicyError(f"{root.path}.network", "is not there; nothing says what may be reached")
    network = node["network"].members("the network's settings")
    for key, member in network.items():
        if key in _NARROWING and member.value is not False:
            draft.undeniable(member.path, _NARROWING[key])
        elif key in _OTHERWISE:
            draft.note(member.path, "not about what may be reached on the network")
        elif key not in _LISTS and key not in _NARROWING:
            draft.undeniable(member.path, f"{key} is not known here, and may restrict the rest")
    if "allowedDomains" not in network:
        draft.note(f"{root.path}.network.allowedDomains", "is not there: nothing is allowed")
    for key in ("deniedDomains", "allowedDomains"):
        for item in network[key].items("domains") if key in network else ():
            _entry(draft, item, denied=key == "deniedDomains")
    return draft.finish()


def _entry(draft: Draft, item: Node, *, denied: bool) -> None:
    host, port = split_port(item.text("a domain such as *.example.com"), item.path)
    if denied:
        draft.deny(host, both(port), item.path)
        for text in ("0.0.0.0/0", "::/0") if host == "*" else ():
            draft.deny(text, both(port), item.path)
    else:
        draft.allow(host, both(port, udp=False), item.path)


def _permissions(draft: Draft, node: Node | None) -> None:
    """Claude Code opens for commands what WebFetch may fetch, too."""
    allow = node.members().get("allow") if node is not None else None
    for item in allow.items() if allow is not None else ():
        if isinstance(item.value, str) and item.value.startswith("WebFetch("):
            draft.gap(item.path, "left out: what WebFetch may fetch; name the domain in sandbox.network.allowedDomains")
