"""Open Brain: `security.sandbox.network` of its config/settings.yaml.

allow_egress: true        # may the sandbox reach the network outside
allowed_ports: [80, 443]  # on which ports, unless restrict_egress is false
block_egress: false       # nothing at all, whatever else stands there
"""

from __future__ import annotations

from policies.model import PolicyError
from policies.ports import merge
from policies.translate.draft import ALL_PORTS, Draft, Options, Reach, Translation
from policies.translate.tree import Node, port, read
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.ports import Ranges

_KEYS = ("allow_egress", "allowed_ports", "block_egress", "restrict_egress")


def translate(text: str, options: Options) -> Translation:
    """Translate a settings file. Raises PolicyError."""
    draft = Draft(options)
    node = read(text)
    for key in ("security", "sandbox", "network"):
        members = node.members("the settings of Open Brain")
        if key == "sandbox" and "mode" in members and members["mode"].text() == "direct":
            draft.note(members["mode"].path, "direct: by default commands run outside any sandbox, and no policy holds")
        if key not in members:
            raise PolicyError(
                f"{node.path}.{key}", "is not there; the sandbox's network stands in security.sandbox.network"
            )
        node = members[key]
    network = node.known(_KEYS, "the network's settings, such as {allow_egress: true, allowed_ports: [443]}")
    flags = {key: network[key].flag() for key in _KEYS if key in network and key != "allowed_ports"}
    ports = _ports(network.get("allowed_ports"))  # read whatever the flags say: a fault is a fault
    if flags.get("block_egress", False):
        draft.note(f"{node.path}.block_egress", "true: nothing is allowed")
        return draft.finish()
    if not flags.get("allow_egress", False):
        draft.note(f"{node.path}.allow_egress", "not true: nothing is allowed")
        return draft.finish()
    if not flags.get("restrict_egress", True) or ports is None:
        ports = ALL_PORTS
    place = f"{node.path}.{'allowed_ports' if ports != ALL_PORTS else 'allow_egress'}"
    if ports:
        draft.note(place, "read as TCP, to addresses outside: not those of the network around")
        draft.allow("*", Reach(ports), place)
        draft.allow_internet(Reach(ports), place)
    return draft.finish()


def _ports(node: Node | None) -> Ranges | None:
    if node is None:
        return None
    found = [port(item) for item in node.items("ports, such as [80, 443]")]
    return merge([(one, one) for one in found])
