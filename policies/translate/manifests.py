"""Which policies of a file of Kubernetes manifests are meant."""

from __future__ import annotations

from policies.model import PolicyError
from policies.name import show
from policies.translate.tree import Node, read_all
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policies.translate.draft import Draft, Options


def label(policy: Node) -> str:
    """The name of a policy, `unnamed` where it has none."""
    metadata = policy.members().get("metadata")
    name = metadata.members().get("name") if metadata is not None else None
    return name.text("a name") if name is not None else "unnamed"


def chosen(
    text: str, kinds: Sequence[str], options: Options, draft: Draft, speaks: Callable[[Node], bool]
) -> list[Node]:
    """The policies of these kinds that speak of egress: the only one, or those named. Raises PolicyError."""
    found: list[Node] = []
    others: list[str] = []
    pending = read_all(text)
    while pending:
        node = pending.pop(0)
        members = node.members("a manifest with kind, metadata and spec")
        if "kind" not in members:
            raise PolicyError(node.path, "not a manifest: kind is missing")
        kind = members["kind"].text("a kind")
        if kind.endswith("List") and "items" in members:
            pending = [*members["items"].items("manifests"), *pending]
        elif kind not in kinds:
            others.append(kind)
        elif speaks(node):
            found.append(node)
        else:
            draft.note(node.path, f"{label(node)} says nothing about egress")
    wanted = [node for node in found if label(node) in options.names] if options.names else found
    missing = sorted(set(options.names) - {label(node) for node in found})
    if missing:
        raise PolicyError("$", f"no {kinds[0]} {show(missing[0])} with egress; there are: {_list(found)}")
    if not found:
        also = f"; found {', '.join(sorted(set(others)))}" if others else ""
        raise PolicyError("$", f"no {' or '.join(kinds)} that speaks of egress{also}")
    if not options.names and len(found) > 1:
        raise PolicyError("$", f"{len(found)} policies ({_list(found)}); choose the pod's with --name, they add up")
    for kind in sorted(set(others)):
        draft.note("$", f"{kind}: not looked at")
    return wanted


def _list(found: Sequence[Node]) -> str:
    return ", ".join(label(node) for node in found) or "none"
