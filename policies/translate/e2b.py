"""E2B's options of a sandbox: `allowInternetAccess`, `network.allowOut`, `network.denyOut` (or `allow_internet_access`,
`allow_out`, `deny_out`). What is allowed wins over what is denied; what neither names is open.

A domain counts for HTTP on port 80 and TLS on port 443, which are looked into; other ports go by address. Sandboxes
have the internet, IPv4, and not the network around.
"""

from __future__ import annotations

from policies.model import Action
from policies.translate.draft import WHOLE, Draft, Options, Reach, Translation, target
from policies.translate.tree import read

_ROOT = {"allowInternetAccess": "internet", "allow_internet_access": "internet", "network": "network"}
_NETWORK = {
    "allowOut": "allow",
    "allow_out": "allow",
    "denyOut": "deny",
    "deny_out": "deny",
    "allowPublicTraffic": "",
    "allow_public_traffic": "",
    "maskRequestHost": "",
    "mask_request_host": "",
}
_WEB = Reach(((80, 80), (443, 443)))
EVERYTHING = "0.0.0.0/0"


def translate(text: str, options: Options) -> Translation:
    """Translate the options, JSON or YAML. Raises PolicyError."""
    draft = Draft(options)
    members = read(text).known(_ROOT, "options such as {network: {allowOut: [], denyOut: []}}")
    found = {_ROOT[key]: node for key, node in members.items()}
    network = found["network"].known(_NETWORK) if "network" in found else {}
    lists = {_NETWORK[key]: node for key, node in network.items()}
    closed = "internet" in found and not found["internet"].flag()
    named = False
    for item in lists["allow"].items("domains and networks") if "allow" in lists else ():
        one = target(item.text("a domain or a network"), item.path)
        named = named or one.network is None
        draft.first(Action.ALLOW, one.text, _WEB if one.network is None else WHOLE, item.path)
    for item in lists["deny"].items("networks") if "deny" in lists else ():
        text = item.text("a network")
        if target(text, item.path).network is None:
            draft.gap(item.path, "a domain in denyOut, which E2B does not support: denied here")
        if text == EVERYTHING:
            closed = True
        else:
            draft.first(Action.DENY, text, WHOLE, item.path)
    if not closed:
        place = found["internet"].path if "internet" in found else "$"
        draft.allow("*", WHOLE, place, "the internet is open unless it is denied")
        draft.allow_internet(WHOLE, place, "4", "the internet is open unless it is denied")
    elif not named and "allow" in lists:
        draft.note(lists["allow"].path, "no domain is allowed, so no name can be asked for")
    return draft.finish()
