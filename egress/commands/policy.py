"""`egress policy`: read or change the policy of a running sidecar."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from egress.commands.client import Answer, Refused, Sidecar, add_options
from egress.commands.output import (
    GOOD,
    NOT,
    CommandError,
    Outcome,
    Parser,
    json_line,
    policy_json,
    policy_yaml,
    run,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

HELP = """\
usage: egress policy get|set|add|remove [OPTION ...] [ARGUMENT ...]

Read or change the policy of a running sidecar. A change is all or nothing, holds when the command returns, and is kept
where the sidecar has a policy file. Connections that the new policy forbids are cut.

  get                      print the policy in force
  set FILE|PRESET|-        replace it
  add RULE ...             put rules before the others, in place of the same ones
  remove TARGET ...        take rules out

examples:
  egress policy get
  egress policy set web-only
  egress policy add --allow packages.example.com:443 --deny tracker.example.com
  egress policy remove packages.example.com
  docker exec guard egress policy add --allow '*.example.com'
      the unix socket is inside the sidecar's container
  OPENSANDBOX_EGRESS_TOKEN=... egress policy get --url http://127.0.0.1:18080
      over HTTP, which needs the token for changes

Each has its own help: egress policy add --help

exit code: 0 done, 1 the sidecar refused or cannot be reached (or there was nothing to remove), 2 this call is wrong.
"""

ADD = """\
examples:
  egress policy add --allow api.example.com
  egress policy add --allow api.example.com:443 --allow '*.example.com:8000-8100' --deny 192.0.2.0/24
      ports after a colon; an IPv6 address with a port stands in brackets: [2001:db8::1]:443
  egress policy add '{"action": "allow", "target": "dns.example.com", "ports": [853], "protocol": "tcp"}'
      a rule as it stands in a policy, where a protocol or a comment is needed

Rules added come first, denials before allowances: what is added wins over what is there. A rule for the same target,
ports and protocol is replaced.
"""

REMOVE = """\
examples:
  egress policy remove tracker.example.com
      every rule of this target
  egress policy remove api.example.com:443
      the rule for this target with exactly these ports and no protocol
  egress policy remove '{"target": "api.example.com", "ports": [443], "protocol": "tcp"}'
      the rule with these ports and this protocol
"""

SET = """\
examples:
  egress policy set policy.yaml
  egress policy set deny-all
  egress policy get --url http://10.0.0.5:18080 | egress policy set -

The policy is checked before it is sent. A blank document means: deny everything.
"""


def main(argv: list[str]) -> int:
    """Run one of the four; returns the exit code."""
    actions: dict[str, Callable[[list[str]], Outcome]] = {"get": _get, "set": _set, "add": _add, "remove": _remove}
    if argv and argv[0] in ("-h", "--help", "help"):
        return run("policy", lambda: Outcome(GOOD, HELP))
    action = actions.get(argv[0]) if argv else None
    if action is None:
        problem = f"unknown action {argv[0]!r}" if argv else "no action given"
        return run("policy", lambda: _usage(f"{problem}; write get, set, add or remove (egress policy --help)"))
    return run(f"policy {argv[0]}", lambda: action(argv[1:]))


def _usage(words: str) -> Outcome:
    raise CommandError(words)


def _get(argv: list[str]) -> Outcome:
    parser = _parser("get", "[OPTION ...]", "Print the policy in force.")
    options = parser.parse_args(argv)
    return _told(options, lambda sidecar: sidecar.call("GET"))


def _set(argv: list[str]) -> Outcome:
    from egress.commands.reading import load

    parser = _parser("set", "[OPTION ...] FILE|PRESET|-", "Replace the policy.", SET)
    parser.add_argument("file", metavar="FILE|PRESET|-", help="a policy file, a preset's name, or - for standard input")
    options = parser.parse_args(argv)
    document = load(options.file).to_document()
    return _told(options, lambda sidecar: sidecar.call("PUT", document))


def _add(argv: list[str]) -> Outcome:
    from egress.commands.reading import inline_rules

    parser = _parser("add", "[OPTION ...] [--allow TARGET] [--deny TARGET] [RULE ...]", "Put rules first.", ADD)
    parser.add_argument("--allow", metavar="TARGET", action="append", default=[], help="allow it; may be given again")
    parser.add_argument("--deny", metavar="TARGET", action="append", default=[], help="deny it; may be given again")
    parser.add_argument("rules", metavar="RULE", nargs="*", help="a rule as a JSON object")
    options = parser.parse_args(argv)
    rules = [rule.to_document() for rule in inline_rules(options.allow, options.deny)]
    rules += [_rule(text) for text in options.rules]
    if not rules:
        raise CommandError("no rule given; write --allow TARGET or --deny TARGET (egress policy add --help)")
    return _told(options, lambda sidecar: sidecar.call("PATCH", rules))


def _rule(text: str) -> dict[str, object]:
    from policies.model import PolicyError
    from policies.parser import parse_patch

    if not text.lstrip().startswith("{"):
        raise CommandError(f"{text!r} is no rule; write --allow {text} or --deny {text}, or a rule as a JSON object")
    try:
        return parse_patch(f"[{text}]")[0].to_document()
    except PolicyError as error:
        raise CommandError(f"rule {error.path.removeprefix('$[0]').lstrip('.') or 'given'}: {error.message}") from None


def _remove(argv: list[str]) -> Outcome:
    parser = _parser("remove", "[OPTION ...] TARGET ...", "Take rules out.", REMOVE)
    parser.add_argument("targets", metavar="TARGET", nargs="+", help="a target, with ports or not, or a JSON object")
    options = parser.parse_args(argv)
    selectors = [selector for text in options.targets for selector in _selectors(text)]
    outcome, answer = _change(options, lambda sidecar: sidecar.call("DELETE", selectors))
    if answer is not None and answer.reason:
        return outcome._replace(code=NOT)
    return outcome


def _selectors(text: str) -> list[object]:
    from policies.model import Action, PolicyError
    from policies.parser import parse_delete, parse_target_list

    try:
        if text.lstrip().startswith("{"):
            parse_delete(f"[{text}]")
            return [json.loads(text)]
        rules = parse_target_list(text, Action.ALLOW, "target")
    except PolicyError as error:
        raise CommandError(f"{text!r}: {error.message}") from None
    if not rules:
        raise CommandError("an empty target; write a name or an address")
    documents = [rule.to_document() for rule in rules]
    return [
        {"target": document["target"], "ports": document["ports"]} if "ports" in document else document["target"]
        for document in documents
    ]


def _told(options: argparse.Namespace, ask: Callable[[Sidecar], Answer]) -> Outcome:
    return _change(options, ask)[0]


def _change(options: argparse.Namespace, ask: Callable[[Sidecar], Answer]) -> tuple[Outcome, Answer | None]:
    """Ask, and show the policy that is then in force."""
    sidecar = Sidecar(options.socket, options.url, options.token)
    try:
        answer = ask(sidecar)
    except Refused as refused:
        if not options.json:
            raise
        return Outcome(NOT, json_line({**refused.answer.document, "httpStatus": refused.answer.status})), None
    except CommandError as error:
        if not options.json or error.code != NOT:
            raise
        return Outcome(NOT, json_line({"status": "error", "reason": str(error)})), None
    whole, trouble = answer, ""
    if answer.method != "GET":
        try:
            whole = sidecar.call("GET")
        except CommandError as error:  # the change holds all the same
            trouble = f"done, but the policy cannot be read back: {error}"
    if options.json:
        return Outcome(GOOD, json_line({**whole.document, **answer.document})), answer
    return _shown(sidecar, answer, whole, trouble, yaml=options.yaml), answer


def _shown(sidecar: Sidecar, answer: Answer, whole: Answer, trouble: str, *, yaml: bool) -> Outcome:
    """The policy for standard output; mode and notes for standard error."""
    mode, enforced = whole.document.get("mode"), whole.document.get("enforcementMode")
    remarks = [f"{sidecar.label}: {mode}" + (f", enforced by {enforced}" if enforced else "")]
    if answer.reason:
        remarks.insert(0, f"{sidecar.label}: {answer.reason}")
    missing = whole.document.get("notEnforced")
    if isinstance(missing, list) and missing:
        remarks.append(f"{sidecar.label}: not enforced in this mode: {', '.join(map(str, missing[:10]))}")
    if trouble:
        return Outcome(GOOD, "", (*remarks, trouble))
    policy = sidecar.parse(whole)
    return Outcome(GOOD, (policy_yaml if yaml else policy_json)(policy), tuple(remarks))


def _parser(action: str, arguments: str, description: str, epilog: str = "") -> Parser:
    parser = Parser(f"egress policy {action}", f"egress policy {action} {arguments}", description, epilog)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the sidecar's answer, and the policy, as one JSON object")
    form.add_argument("--yaml", action="store_true", help="print the policy as YAML")
    add_options(parser)
    return parser
