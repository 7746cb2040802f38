"""Docker sandboxes: the commands that set a policy, or the rules of the governance API.

    sbx policy init deny-all
    sbx policy allow network "api.example.com,**.example.com:443"
    sbx policy deny network --protocol udp 192.0.2.0/24

    {"rules": [{"name": "api", "actions": ["connect:tcp"], "resources": ["api.example.com"], "decision": "allow"}]}

Denials win. `*.` in front of a name stands for one label, `**.` for any number: only the latter is our wildcard.
"""

from __future__ import annotations

import shlex

from policies.model import PolicyError
from policies.name import show
from policies.source import read_text
from policies.translate.draft import ALL_PORTS, WHOLE, Draft, Options, Reach, Translation, target
from policies.translate.hosts import split_port
from policies.translate.tree import Node, read
from policies.values import NamedTuple

_OPTIONS = {"--protocol": 1, "--sandbox": 1, "--method": 1, "--path": 1, "-D": 0, "--debug": 0}
_PRESETS = ("deny-all", "allow-all", "balanced")
_ACTIONS = {"connect:tcp": "tcp", "connect:udp": "udp"}


class Asked(NamedTuple):
    """One rule: what it names, for which protocols, and whether it is about a part of HTTP."""

    denied: bool
    resources: tuple[str, ...]
    protocols: tuple[str, ...]
    http: str
    place: str


def translate(text: str, options: Options) -> Translation:
    """Translate commands or a document. Raises PolicyError."""
    draft = Draft(options)
    text = read_text(text)
    document = text.lstrip()[:1] in ("{", "[")
    for rule in _documents(draft, text) if document else _commands(draft, text):
        for resource in rule.resources:
            _resource(draft, rule, resource)
    return draft.finish()


def _resource(draft: Draft, rule: Asked, text: str) -> None:
    place = rule.place
    host, port = split_port(text, place)
    ranges = ((port, port),) if port else ALL_PORTS
    ports = Reach(ranges if "tcp" in rule.protocols else (), ranges if "udp" in rule.protocols else ())
    if rule.denied and not port and len(rule.protocols) == len(_ACTIONS):
        ports = WHOLE
    if host in ("**", "*"):
        if host == "*":
            raise PolicyError(place, "'*' alone; write '**' for everything")
        for everything in ("*", "0.0.0.0/0", "::/0"):
            (draft.deny if rule.denied else draft.allow)(everything, ports, place)
        return
    if host.startswith("**."):
        host = host[1:]
    elif host.startswith("*."):
        words = f"{host} stands for one label, ours for deeper names too"
        if rule.denied:
            draft.gap(place, f"{words}: they are denied as well")
        elif not draft.only_wider(place, words):
            return
    target(host, place)  # a fault is told before anything else
    if rule.http and rule.denied:
        draft.gap(place, f"denied as a whole, not only {rule.http}: requests are not the guard's to see")
    elif rule.http and not draft.only_wider(place, f"opens all of {host}, not only {rule.http}"):
        return
    (draft.deny if rule.denied else draft.allow)(host, ports, place)


# -- commands --------------------------------------------------------------------------------------------------------
def _commands(draft: Draft, text: str) -> list[Asked]:
    found = []
    text = text.replace("\\\n", "  ")  # continued lines; line numbers are those of the first
    for number, line in enumerate(text.split("\n"), 1):
        place = f"line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise PolicyError(place, f"not a command: {error}") from None
        if words[:1] == ["$"]:
            words = words[1:]
        if words[:1] == ["set"] or not words:
            continue
        if words[:2] != ["sbx", "policy"] or len(words) < 3:
            raise PolicyError(place, f"{show(line)}: no sbx policy command; leave out what sets no policy")
        found += _command(draft, words[2:], place)
    return found


def _command(draft: Draft, words: list[str], place: str) -> list[Asked]:
    verb, rest = words[0], words[1:]
    if verb == "init":
        if len(rest) != 1 or rest[0] not in _PRESETS:
            raise PolicyError(place, f"unknown preset; there are {', '.join(_PRESETS)}")
        if rest[0] == "balanced":
            draft.gap(place, "left out: the hosts that Docker's balanced preset allows; sbx policy ls names them")
        return [Asked(False, ("**",), ("tcp",), "", place)] if rest[0] == "allow-all" else []
    if verb not in ("allow", "deny") or rest[:1] != ["network"]:
        raise PolicyError(place, f"{show(verb)}: only init, allow network and deny network say what a policy is")
    plain: list[str] = []
    given: dict[str, str] = {}
    pending = rest[1:]
    while pending:
        word = pending.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif name not in _OPTIONS or (_OPTIONS[name] and not equals and not pending):
            raise PolicyError(place, f"{show(word)}: an option that is not known, or lacks its value")
        elif _OPTIONS[name]:
            given[name] = value if equals else pending.pop(0)
    if len(plain) != 1:
        raise PolicyError(place, "write the hosts as one word: sbx policy allow network HOST,HOST")
    if "--sandbox" in given:
        draft.note(place, f"for sandbox {given['--sandbox']} alone; translated with the rest")
    http = " ".join(given[name] for name in ("--method", "--path") if name in given)
    denied = verb == "deny"
    protocols = tuple(given.get("--protocol", "tcp,udp" if denied else "tcp").lower().split(","))
    for name in protocols:
        if name not in ("tcp", "udp"):
            raise PolicyError(place, f"{show(name)}: no protocol; write tcp, udp or tcp,udp")
    return [Asked(denied, tuple(part.strip() for part in plain[0].split(",")), protocols, http, place)]


# -- documents -------------------------------------------------------------------------------------------------------
def _documents(draft: Draft, text: str) -> list[Asked]:
    root = read(text)
    members = root.members() if not isinstance(root.value, list) else {"rules": root}
    if "policy" in members:
        members = members["policy"].members()
    if "rules" not in members:
        raise PolicyError(f"{root.path}.rules", "is not there; write {rules: [{actions, resources, decision}]}")
    return [rule for item in members["rules"].items("rules") for rule in _rule(draft, item)]


def _rule(draft: Draft, item: Node) -> list[Asked]:
    members = item.members("a rule")
    for key in ("actions", "resources", "decision"):
        if key not in members:
            raise PolicyError(f"{item.path}.{key}", "is not there")
    decision = members["decision"].text("allow or deny").lower()
    if decision not in ("allow", "deny"):
        raise PolicyError(members["decision"].path, f"{show(decision)}: write allow or deny")
    known = ("id", "name", "actions", "resources", "decision", "created_at", "updated_at", "description")
    unknown = [key for key in members if key not in known]
    if unknown:
        place = members[unknown[0]].path
        if decision == "allow":
            draft.gap(place, f"rule left out: {show(unknown[0])} is not known here, and may restrict it")
            return []
        draft.gap(place, f"{show(unknown[0])} is not known here: denied as a whole")
    actions = [one.text("connect:tcp or connect:udp") for one in members["actions"].items("actions")]
    if all(one in ("read", "write") for one in actions):
        draft.note(item.path, "about files")
        return []
    for one in actions:
        if one not in _ACTIONS:
            raise PolicyError(members["actions"].path, f"unknown action {show(one)}; write connect:tcp or connect:udp")
    resources = tuple(one.text("a host") for one in members["resources"].items("hosts and networks"))
    return [Asked(decision == "deny", resources, tuple(_ACTIONS[one] for one in actions), "", item.path)]
