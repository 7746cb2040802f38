"""Documents into policies, strictly: what isn't understood is an error with its JSON path, never skipped.

A policy decides what code that nobody trusts may reach, so a key with a spelling mistake must not be an open door.
The one leniency, from the wire contract: a member that is null counts as absent, a blank document denies everything.
"""

from __future__ import annotations

import re

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import NoReturn

from policies.model import Action, NetworkPolicy, PolicyError, Rule
from policies.name import Target, TargetError, parse_target, show
from policies.ports import LAST_PORT, Ranges, merge
from policies.source import Oddity, Pairs, read_document, read_json, read_text

__all__ = [
    "PolicyError",
    "Selector",
    "parse_delete",
    "parse_patch",
    "parse_policy",
    "parse_rule_file",
    "parse_target_list",
]

_PORTS = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_LONGEST_COMMENT = 200
_RULE_KEYS = ("action", "target", "ports", "protocol", "comment")
_SELECTOR_KEYS = ("target", "ports", "protocol")
_POLICY_KEYS = ("defaultAction", "egress")
_KNOWN: dict[tuple[str, ...], frozenset[str]]
_KNOWN = {keys: frozenset(keys) for keys in (_RULE_KEYS, _SELECTOR_KEYS, _POLICY_KEYS)}


class Selector(NamedTuple):
    """What a DELETE names: every rule of a target (`whole`), or the one with these ports and this protocol."""

    target: str
    whole: bool
    ports: Ranges = ()
    protocol: str = ""


def parse_policy(data: bytes | str, *, yaml: bool = False) -> NetworkPolicy:
    """A policy document: JSON, or with `yaml` also YAML. Blank, null and `{}` deny everything. Raises PolicyError."""
    text = read_text(data)
    tree = read_document(text) if yaml else read_json(text)
    if tree is None:
        return NetworkPolicy()
    members = _members(tree, "$", _POLICY_KEYS, "a policy")
    default = _default(members.get("defaultAction"))
    rules = members.get("egress")
    if rules is None:
        return NetworkPolicy(default)
    return NetworkPolicy(
        default,
        tuple(
            _rule(item, f"$.egress[{index}]", f"egress[{index}]")
            for index, item in enumerate(_list(rules, "$.egress", "rules"))
        ),
    )


def parse_patch(data: bytes | str) -> tuple[Rule, ...]:
    """The body of PATCH: a JSON array of rules, not empty. Raises PolicyError."""
    items = _body(data, "rules")
    return tuple(_rule(item, f"$[{index}]", f"egress[{index}]") for index, item in enumerate(items))


def parse_delete(data: bytes | str) -> tuple[Selector, ...]:
    """The body of DELETE: a JSON array of targets or of `{"target", "ports", "protocol"}`. Raises PolicyError."""
    return tuple(_selector(item, f"$[{index}]") for index, item in enumerate(_body(data, "targets")))


def parse_rule_file(text: bytes | str, action: Action, origin: str) -> tuple[Rule, ...]:
    """A rule file: one target per line, `#` starts a comment. Errors name `origin:line`. Raises PolicyError."""
    try:
        text = read_text(text)
    except PolicyError as error:
        raise PolicyError(origin, error.message) from None
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.partition("#")[0].strip(" \t\r")
        if line:
            place = f"{origin}:{number}"
            target = _target(line, place)
            rules.append(Rule(action, target.text, target.kind, target.network, origin=place))
    return tuple(rules)


def parse_target_list(text: str, action: Action, origin: str) -> tuple[Rule, ...]:
    """Targets separated by commas, each with `:port` or `:first-last` where wanted, IPv6 then in brackets.

    Errors name `origin[index]`. Raises PolicyError.
    """
    if not text.strip(_BLANK):
        return ()
    rules = []
    for index, item in enumerate(text.split(",")):
        place = f"{origin}[{index}]"
        item = item.strip(_BLANK)
        host, ports = _split_ports(item)
        ranges = (_port_text(ports, place),) if ports is not None else ()
        target = _target(host, place)
        rules.append(Rule(action, target.text, target.kind, target.network, ranges, origin=place))
    return tuple(rules)


_BLANK = " \t\r\n"
_BRACKETED = r"(?as)\[([0-9A-Fa-f:.]+(?:/[0-9]+)?)\](/[0-9]+)?(?::(.*))?"


def _split_ports(item: str) -> tuple[str, str | None]:
    match = re.fullmatch(_BRACKETED, item)
    if match:
        return match[1] + (match[2] or ""), match[3]
    if item.count(":") == 1 and "://" not in item:
        host, _, ports = item.partition(":")
        return host, ports
    return item, None


def _body(data: bytes | str, what: str) -> list[object]:
    tree = read_json(read_text(data))
    items = _list(tree, "$", what) if tree is not None else []
    if not items:
        raise PolicyError("$", f"no {what}; write an array of at least one")
    return items


def fail_type(value: object, path: str, wanted: str) -> NoReturn:
    """Raises PolicyError: what is there, and what to write."""
    if isinstance(value, Oddity):
        found = value.words
    elif isinstance(value, Pairs):
        found = "an object"
    elif isinstance(value, list):
        found = "an array"
    elif isinstance(value, str):
        found = f"the text {show(value)}"
    elif value is None or isinstance(value, bool):
        found = {None: "null", True: "true", False: "false"}[value]
    else:
        found = f"the number {value}"
    raise PolicyError(path, f"{found}; write {wanted}")


def _list(value: object, path: str, what: str) -> list[object]:
    if not isinstance(value, list):
        fail_type(value, path, f"an array of {what}")
    return value


def _members(value: object, path: str, known: tuple[str, ...], what: str) -> dict[str, object]:
    """The members of an object, those that are null left out; unknown and doubled keys are errors."""
    if not isinstance(value, Pairs):
        example = {
            _POLICY_KEYS: '{"defaultAction": "deny", "egress": []}',
            _RULE_KEYS: '{"action": "allow", "target": "api.example.com"}',
            _SELECTOR_KEYS: '"api.example.com" or {"target": "api.example.com", "ports": [443]}',
        }[known]
        fail_type(value, path, f"{what} such as {example}")
    members = dict(value.pairs)
    if len(members) < len(value.pairs) or not _KNOWN[known].issuperset(members):
        _fail_keys(value.pairs, path, known, what)
    return {key: member for key, member in members.items() if member is not None}


def _fail_keys(pairs: list[tuple[str, object]], path: str, known: tuple[str, ...], what: str) -> NoReturn:
    """Raises PolicyError for the first key that is unknown or stands there twice."""
    seen = set()
    for key, _ in pairs:
        if key not in known:
            near = next((name for name in known if _near(name, key)), None)
            advice = f'write "{near}"' if near else f"{what} has {', '.join(known)}"
            raise PolicyError(path + _step(key), f"unknown key {show(key)}; {advice}")
        if key in seen:
            raise PolicyError(f"{path}.{key}", "the key stands there twice; write it once")
        seen.add(key)
    raise AssertionError("unreachable")


def _step(key: str) -> str:
    """A key as a step of a JSON path."""
    return f".{key}" if re.fullmatch(_IDENTIFIER, key) else f"[{show(key)}]"


_IDENTIFIER = r"(?a)[A-Za-z_][A-Za-z0-9_]{0,60}"


def _near(name: str, key: str) -> bool:
    fold = key.lower().replace("_", "").replace("-", "")
    return fold in (name.lower(), name.lower() + "s", name.lower().removesuffix("s"))


def _default(value: object) -> Action:
    if value is None:
        return Action.DENY
    return _action(value, "$.defaultAction")


def _action(value: object, path: str) -> Action:
    if not isinstance(value, str):
        fail_type(value, path, '"allow" or "deny"')
    action = _ACTIONS.get(value.lower())
    if action is None:
        raise PolicyError(path, f'unknown action {show(value)}; write "allow" or "deny"')
    return action


_ACTIONS = {"allow": Action.ALLOW, "deny": Action.DENY}


def _rule(value: object, path: str, origin: str) -> Rule:
    members = _members(value, path, _RULE_KEYS, "a rule")
    if "action" not in members:
        raise PolicyError(path, '"action" is missing; write "allow" or "deny"')
    action = _action(members["action"], f"{path}.action")
    text, kind, network = _member_target(members, path)
    if len(members) == 2:  # as nearly all of them are
        return Rule._make((action, text, kind, network, (), "", "", origin))
    ports = _ports(members.get("ports"), f"{path}.ports")
    protocol = _protocol(members.get("protocol"), f"{path}.protocol")
    comment = _comment(members.get("comment"), f"{path}.comment")
    return Rule._make((action, text, kind, network, ports, protocol, comment, origin))


def _selector(value: object, path: str) -> Selector:
    if isinstance(value, str):
        return Selector(_target(value, path).text, whole=True)
    members = _members(value, path, _SELECTOR_KEYS, "a target")
    target = _member_target(members, path)
    ports = _ports(members.get("ports"), f"{path}.ports")
    return Selector(target.text, False, ports, _protocol(members.get("protocol"), f"{path}.protocol"))


def _member_target(members: dict[str, object], path: str) -> Target:
    if "target" not in members:
        raise PolicyError(path, '"target" is missing; write a name such as "api.example.com" or an address')
    value = members["target"]
    if not isinstance(value, str):
        fail_type(value, f"{path}.target", 'a name such as "api.example.com" or an address, in quotes')
    return _target(value, f"{path}.target")


def _target(text: str, path: str) -> Target:
    try:
        return parse_target(text)
    except TargetError as error:
        raise PolicyError(path, f"{show(text)}: {error}") from None


def _ports(value: object, path: str) -> Ranges:
    if value is None:
        return ()
    items = _list(value, path, 'ports such as [443, "8000-8100"]')
    if not items:
        raise PolicyError(path, 'no port in it; write some, such as [443, "8000-8100"], or leave "ports" out for all')
    ranges = []
    for index, item in enumerate(items):
        place = f"{path}[{index}]"
        if isinstance(item, str):
            ranges.append(_port_text(item, place))
        elif isinstance(item, int) and not isinstance(item, bool):
            ranges.append((_port(item, place), item))
        else:
            fail_type(item, place, 'a port such as 443 or "8000-8100"')
    return merge(ranges)


def _port_text(text: str, path: str) -> tuple[int, int]:
    match = _PORTS.fullmatch(text)
    if not match:
        raise PolicyError(path, f'{show(text)} is no port; write one such as 443 or "8000-8100"')
    first, last = (_port_number(part, text, path) for part in (match[1], match[2] or match[1]))
    if first > last:
        raise PolicyError(path, f'{show(text)} runs backwards; write "{last}-{first}"')
    return first, last


def _port_number(digits: str, text: str, path: str) -> int:
    if len(digits) > 5 or digits[0] == "0":
        raise PolicyError(path, f"{show(text)}: ports go from 1 to {LAST_PORT}, without leading zeros")
    return _port(int(digits), path)


def _port(number: int, path: str) -> int:
    if not 1 <= number <= LAST_PORT:
        raise PolicyError(path, f"{number} is no port; ports go from 1 to {LAST_PORT}")
    return number


def _protocol(value: object, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        fail_type(value, path, '"tcp" or "udp"')
    protocol = value.lower()
    if protocol not in ("tcp", "udp"):
        raise PolicyError(path, f'unknown protocol {show(value)}; write "tcp" or "udp", or leave it out for both')
    return protocol


def _comment(value: object, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        fail_type(value, path, "text")
    if len(value) > _LONGEST_COMMENT:
        raise PolicyError(path, f"{len(value)} characters; a comment has at most {_LONGEST_COMMENT}")
    odd = next((char for char in value if not char.isprintable()), None)
    if odd is not None:
        raise PolicyError(path, f"a character that doesn't print (U+{ord(odd):04X}); leave it out")
    return value
