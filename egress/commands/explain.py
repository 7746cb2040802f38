"""`egress explain`: what a policy decides about a name, an address or a URL, and which rule does it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from egress.commands.output import GOOD, NOT, CommandError, Outcome, Parser, json_line, printable, run

if TYPE_CHECKING:
    import argparse

    from egress.commands.verdict import Verdict
    from policies.matcher import CompiledPolicy

EPILOG = """\
examples:
  egress explain --policy policy.yaml api.example.com
  egress explain --policy web-only api.example.com:443 api.example.com:22
      several targets: one verdict each; a preset's name in place of a file
  egress explain --policy policy.yaml https://api.example.com/v1/items
      a URL stands for its host and port
  egress explain --policy policy.yaml 192.0.2.10:5432 '[2001:db8::1]:443'
      addresses; an IPv6 address with a port stands in brackets
  egress explain --policy policy.yaml --protocol udp api.example.com:443
      QUIC; without --protocol either of TCP and UDP will do
  egress explain --allow '*.example.com:443' --deny bad.example.com bad.example.com
      rules without a file; they mean what they mean to egress run, and come before those of --policy
  egress explain --socket /run/sallyport/egress.sock api.example.com
  egress explain --url http://127.0.0.1:18080 api.example.com
      against the policy of a running sidecar
  egress explain --policy policy.yaml --json api.example.com | jq -r .rule.origin
      one JSON object a line and a target

The first rule that matches decides, by name and port. What a name leads to is opened on the name's ports for as long as
the answer is good; explicit denials of addresses win over that, and private and special addresses are never learned
from a name unless an address rule opens them.

exit code: 0 everything asked about is allowed, 1 something is denied, 2 the call or the policy is wrong.
"""

SCHEMES = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22, "sftp": 22, "git": 9418}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(?:[/?#].*)?", re.DOTALL)
_QUERY_NAME = re.compile(r"(?!\Z)(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*\.?")


class Asked(NamedTuple):
    """What is asked about: a name, or an address as packed bytes; `port` None for any."""

    text: str
    host: str | bytes
    port: int | None
    protocol: str  # "tcp", "udp" or "" for either


def main(argv: list[str]) -> int:
    """Explain every target; returns the exit code."""
    return run("explain", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.commands.verdict import judge

    asked = [parse_target(text, options.protocol) for text in options.targets]
    compiled, mode, remarks = _policy(options)
    verdicts = [judge(compiled, question, mode) for question in asked]
    code = GOOD if all(verdict.allowed for verdict in verdicts) else NOT
    if options.json:
        return Outcome(code, "".join(json_line(verdict.document()) for verdict in verdicts), remarks)
    return Outcome(code, "".join(_shown(verdict) for verdict in verdicts), remarks)


def _shown(verdict: Verdict) -> str:
    lines = [f"{'allow' if verdict.allowed else 'deny '}  {verdict.asked.text}", f"       because  {verdict.reason}"]
    if verdict.ports:
        lines.append(f"       open     {verdict.ports}")
    lines += [f"       note     {note}" for note in verdict.notes]
    return "\n".join(lines) + "\n"


def _policy(options: argparse.Namespace) -> tuple[CompiledPolicy, str, tuple[str, ...]]:
    """The policy asked about, compiled; the mode; and what is to be remarked about it."""
    from egress.commands.reading import inline_rules, load
    from policies.matcher import compile_policy
    from policies.model import NetworkPolicy, PolicyError

    rules = inline_rules(options.allow, options.deny)
    live = bool(options.socket or options.url)
    mode = options.mode or _mode_of_environment()
    remarks: tuple[str, ...] = ()
    if live and options.policy:
        raise CommandError("--policy and a running sidecar exclude each other; give one")
    if live:
        from egress.commands.client import Sidecar

        sidecar = Sidecar(options.socket, options.url, options.token)
        try:
            answer = sidecar.call("GET")
            policy = sidecar.parse(answer)
        except CommandError as error:  # here 1 would say "denied"
            raise CommandError(str(error)) from None
        mode = options.mode or str(answer.document.get("enforcementMode") or mode)
        remarks = (
            f"{sidecar.label}: the operator's rule files and variables are not in its answer, so not judged here",
        )
    elif options.policy:
        policy = load(options.policy)
    elif rules:
        policy = NetworkPolicy()
    else:
        raise CommandError("no policy; give --policy FILE or PRESET, --allow and --deny, or --socket or --url")
    try:
        return compile_policy(policy._replace(egress=(*rules, *policy.egress))), mode, remarks
    except PolicyError as error:
        raise CommandError(str(error)) from None


def _mode_of_environment() -> str:
    tokens = {token.strip().lower() for token in os.environ.get("OPENSANDBOX_EGRESS_MODE", "").split("+")}
    return "dns" if tokens == {"dns"} else "dns+nft"


def parse_target(text: str, protocol: str = "") -> Asked:
    """A target as people write it: name, address, either with a port, or a URL. Raises CommandError."""
    from policies.name import TargetError, parse_host, show

    stripped = text = re.sub(r"(://)[^/?#]*@", r"\1", text.strip())  # a password is nobody's business
    host, port, implied = _split(stripped)
    try:
        found: str | bytes = parse_host(host)
    except TargetError as error:
        # A query may have hyphens at the ends of its labels, though no rule can name it.
        if not _QUERY_NAME.fullmatch(host) or len(host.removesuffix(".")) > 253:
            raise CommandError(f"{show(text)}: {error}") from None
        found = host.lower().removesuffix(".")
    return Asked(printable(stripped), found, port, protocol or implied)


def _split(text: str) -> tuple[str, int | None, str]:
    """Host, port and the protocol that the form implies."""
    from policies.name import show

    url = _URL.fullmatch(text)
    if url:
        scheme, host = url[1].lower(), url[2].rpartition("@")[2]
        if not host:
            raise CommandError(f"{show(text)}: a URL without a host")
        rest, port, _ = _split(host)
        return rest, SCHEMES.get(scheme) if port is None else port, "tcp"
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise CommandError(f"{show(text)}: write an IPv6 address and port as [2001:db8::1]:443")
        return host, _port(rest[1:], text) if rest else None, ""
    if text.count(":") == 1:
        host, _, port_text = text.partition(":")
        return host, _port(port_text, text), ""
    return text, None, ""


def _port(digits: str, text: str) -> int:
    from policies.name import show

    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        raise CommandError(f"{show(text)}: {show(digits)} is no port; ports go from 1 to 65535")
    return int(digits)


def _parser() -> Parser:
    from egress.commands.client import add_options

    parser = Parser(
        "egress explain",
        "egress explain [OPTION ...] NAME|ADDRESS|URL[:PORT] ...",
        "Say what a policy decides about a name or an address, which rule does, and why.",
        EPILOG,
    )
    add = parser.add_argument
    add("targets", metavar="NAME|ADDRESS|URL", nargs="+", help="what to decide about, with a port or without")
    add("--policy", metavar="FILE|PRESET|-", default="", help="a policy file, a preset's name, or - for standard input")
    add("--allow", metavar="TARGET", action="append", default=[], help="a rule before those of the policy")
    add("--deny", metavar="TARGET", action="append", default=[], help="a rule before those of --allow")
    add("--protocol", choices=("tcp", "udp"), default="", help="decide for this protocol only")
    add("--mode", choices=("dns", "dns+nft"), default="", help="the sidecar's mode (default: as it runs, else dns+nft)")
    add("--json", action="store_true", help="one JSON object a line and a target")
    add_options(parser)
    return parser
