"""`egress translate`: another system's egress settings as a policy of ours, never wider than they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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

    from policies.translate import Translation

EPILOG = """\
examples:
  egress translate hosts allowed.txt > policy.json
      a plain list: names, *.names, networks, host:port, URLs
  egress translate kubernetes networkpolicy.yaml --yaml > policy.yaml
  kubectl get cnp -o yaml | egress translate cilium - --name web --name dns
      several policies of one pod add up
  egress translate devcontainer .devcontainer/init-firewall.sh --github-meta meta.json
  egress translate docker-sandbox sbx-policy.sh
  egress translate sandbox-runtime ~/.srt-settings.json
  egress translate e2b options.json
  egress translate open-brain config/settings.yaml
  egress translate cilium policy.yaml --json | jq .gaps
      one JSON object: policy, gaps, widened, notes

systems:
{systems}

The policy goes to standard output; each rule's comment says where it came from. Everything else goes to standard error:
what could not be said, with its place (it is left out: the policy is narrower there), and how things were read.
--wider takes what our language has only wider, and names each; without it that is left out. A denial that cannot be
said ends the translation, because everything else could be wider without it.

exit code: 0 all of it is said, 1 something was left out and --lossy was not given, 2 the file or this call is wrong.
"""


def main(argv: list[str]) -> int:
    """Translate one file; returns the exit code."""
    return run("translate", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from policies.matcher import compile_policy
    from policies.model import PolicyError
    from policies.translate import Options, translate

    if options.github_meta and options.system != "devcontainer":
        raise CommandError("--github-meta is for devcontainer alone")
    if options.name and options.system not in ("kubernetes", "cilium"):
        raise CommandError("--name is for kubernetes and cilium, whose files hold several policies")
    label, text = _read(options.file)
    meta = _read(options.github_meta)[1] if options.github_meta else ""
    try:
        found = translate(options.system, text, Options(options.wider, tuple(options.name), meta))
        compile_policy(found.policy)
    except PolicyError as error:
        raise CommandError(f"{label}: {error.path}: {error.message}") from None
    code = NOT if found.gaps and not options.lossy else GOOD
    if options.json:
        return Outcome(code, json_line(_document(options.system, label, found)))
    return Outcome(code, (policy_yaml if options.yaml else policy_json)(found.policy), _remarks(label, found))


def _document(system: str, label: str, found: Translation) -> dict[str, object]:
    return {
        "system": system,
        "file": label,
        "policy": found.policy.to_document(),
        "gaps": [remark._asdict() for remark in found.gaps],
        "widened": [remark._asdict() for remark in found.widened],
        "notes": [remark._asdict() for remark in found.notes],
    }


def _remarks(label: str, found: Translation) -> tuple[str, ...]:
    kinds = (("note", found.notes), ("wider", found.widened), ("gap", found.gaps))
    lines = [f"{label}: {kind}: {remark}" for kind, remarks in kinds for remark in remarks]
    count = len(found.policy.egress)
    counts = [f"{count} rule{'s' if count != 1 else ''}"]
    counts += [
        f"{len(remarks)} {what}" for what, remarks in (("wider", found.widened), ("left out", found.gaps)) if remarks
    ]
    return (*lines, f"{label}: default {found.policy.default.value}, {', '.join(counts)}")


def _read(path: str) -> tuple[str, str]:
    """A file or `-`, with the name to call it by. Never a preset: these are ours already. Raises CommandError."""
    from egress.commands.reading import read

    if not path:
        raise CommandError("an empty file name; name a file or -")
    source = read(path if path == "-" or os.sep in path else os.path.join(os.curdir, path))
    try:
        return source.label.removeprefix("./"), source.data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{source.label}: not UTF-8: bad byte at offset {error.start}") from None


def _parser() -> Parser:
    from policies.translate import SYSTEMS

    width = max(map(len, SYSTEMS))
    parser = Parser(
        "egress translate",
        "egress translate [OPTION ...] SYSTEM FILE|-",
        "Translate another system's egress settings into a policy.",
        EPILOG.format(systems="\n".join(f"  {name:<{width}}  {what}" for name, what in SYSTEMS.items())),
    )
    add = parser.add_argument
    add("system", metavar="SYSTEM", choices=tuple(SYSTEMS), help=f"one of {', '.join(SYSTEMS)}")
    add("file", metavar="FILE|-", help="its file, or - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object with the policy and all remarks")
    form.add_argument("--yaml", action="store_true", help="print the policy as YAML")
    add("--lossy", action="store_true", help="exit 0 though something was left out; it is named all the same")
    add("--wider", action="store_true", help="take what can only be said wider; each is named")
    add("--name", action="append", default=[], help="kubernetes, cilium: the policy of this name; may be repeated")
    add("--github-meta", metavar="FILE", default="", help="devcontainer: the saved answer of api.github.com/meta")
    return parser
