"""The threats, row by row, and the tests that try them: what `make threats` prints and docs/security.md lists.

A test belongs to a row by its name, `test_e5_…`; else by its file's, `test_i8_liars.py`; else by `ALSO`, for tests
that are named for a numbered way around. Found by reading the files, not by importing them.

    tools/threats             run all of them and print the table (root; minutes)
    tools/threats E5 E12      these rows only
    tools/threats --list      print the table without running anything
    tools/threats --write     write the generated part of docs/security.md anew
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs" / "security.md"
BEGIN, END = "<!-- written by tools/threats --write -->\n", "<!-- end -->\n"


class Row(NamedTuple):
    """One threat."""

    attempt: str
    promise: str
    gap: str = ""  # what of it does not hold yet, and why


ROWS = {
    "E1": Row(
        "an address that no rule and no answer opened: TCP, UDP, ping, IPv4 and IPv6",
        "refused at once, counted, and told with address and port",
    ),
    "E2": Row("another resolver, or Docker's own", "answered by the guard, under the same policy"),
    "E3": Row("DNS over TLS, QUIC or HTTPS; QUIC to a learned address", "refused but where a rule opens that port"),
    "E4": Row("the resolver's address for anything else", "being the resolver opens nothing"),
    "E5": Row(
        "a firewall mark, the sidecar's uid, its ports",
        "the exemption is 64 bits that only the guard knows; no uid counts; taken ports are avoided",
    ),
    "E6": Row(
        "raw and packet sockets, forged flows and answers, forwarding, reading the stamp",
        "nothing leaves and nothing is learned (Linux 5.16; before that start-up says so)",
    ),
    "E7": Row("an allowed name that leads to private, special or metadata addresses", "taken out, nothing is learned"),
    "E8": Row(
        "CNAMEs to denied names, records off the chain, forged answers",
        "only what is on the chain of the question asked counts, and a denial on it wins",
    ),
    "E9": Row("hints, ECH, exotic types, EDNS options", "taken out, not asked, not forwarded"),
    "E10": Row(
        "data in the labels of allowed names",
        "budgets for bytes of new labels, by rule and in all; over them refused and told",
    ),
    "E11": Row(
        "races: before the set is written, while the policy changes, after the rule is gone",
        "the kernel has the address before the client; a change cuts what it forbids within a second, and nothing else",
    ),
    "E12": Row(
        "start, crash, kill, stop, restart, broken settings and files, whatever else fails",
        "never open, no accepted policy lost, no half of a change; it recovers when the cause is gone",
    ),
    "E13": Row("the API from inside: no token, huge, deep, slow, many", "refused, nothing changed, others are served"),
    "E14": Row(
        "floods of DNS: garbage, loops, distinct names, silence",
        "bounded memory; names that are known are answered, new ones as far as they can be told from the flood",
    ),
    "E15": Row(
        "an allowed and a denied name on one address",
        "with `OPENSANDBOX_EGRESS_SNI=enforce` connections on 443 and 80 are let through by SNI and Host, and what "
        "hides or has none is refused; without it the denied name is not answered",
        "off by default: then the address is open for both",
    ),
    "E16": Row("another address in /etc/hosts", "only what was answered counts"),
    "E17": Row("a question from the port that the guard has just used", "intercepted like every other"),
    "E18": Row("flows older than the guard; peers that go on after the cut", "cut, and stay cut"),
    "E19": Row("ports taken before it starts, links and junk where it reads", "a clear error and closed, or unharmed"),
    "I1": Row("request smuggling", "one reading of a stream, or 400 and the end"),
    "I2": Row("hop-by-hop tricks", "no trusted header is nominated away"),
    "I3": Row("forged forwarding and routing headers", "replaced unless a trusted proxy sent them"),
    "I4": Row(
        "a route that leads to loopback, link-local, metadata, the gateway", "refused; dialled is what was checked"
    ),
    "I5": Row("path tricks", "bytes behind the route's prefix pass unchanged, and the prefix holds"),
    "I6": Row("guessing tokens and signatures", "throttled, compared in constant time, one answer for all causes"),
    "I7": Row("slowness, size, number", "time-outs and caps; the others are served"),
    "I8": Row("a sandbox that lies", "an aborted answer, never a clean wrong one"),
    "I9": Row("another sandbox's connection or answer", "connections belong to one life of one sandbox"),
    "I10": Row("WebSockets: size, silence, half-closed, smuggled", "caps, time-outs, clean ends"),
    "I11": Row("the provider of routes is gone", "known routes go on for a time, health says so, nothing hangs"),
}
ALSO = (  # file below tests/, function, row
    ("real/firewall/test_ways_around_raw.py", "test_2_a_mark_", "E5"),
    ("real/firewall/test_ways_around_raw.py", "test_(?!2_a_mark_)", "E6"),
    ("real/firewall/test_every_device.py", "test_", "E6"),
    ("real/firewall/test_ways_around_dns.py", "test_(whoever|dockers)", "E2"),
    ("real/firewall/test_ways_around_dns.py", "test_(4|exempt)", "E4"),
    ("real/firewall/test_ways_around_dns.py", "test_5", "E6"),
    ("real/firewall/test_ways_around_dns.py", "test_(6|our_own)", "E17"),
    ("real/firewall/test_ways_around_dns.py", "test_9", "E14"),
    ("real/firewall/test_flows.py", "test_(7|a_cut|a_load)", "E11"),
    ("real/firewall/test_flows.py", "test_(7|8)", "E18"),
    ("real/firewall/test_rules.py", "test_(lockdown|an_intact|a_damaged|a_refused)", "E12"),
    ("real/firewall/test_load.py", "test_(nothing_denied|what_is_allowed)", "E11"),
    ("blackbox/test_contract_files.py", "test_(a_broken|a_file_broken|an_unreadable|a_full_disk|the_file)", "E12"),
)
_NAMED = re.compile(r"test_([ei]\d+)_")


class Test(NamedTuple):
    """One test function."""

    path: str  # from the checkout
    name: str


def collect() -> dict[str, list[Test]]:
    """The tests of each row, in the order of their files. A row that nobody knows has tests too, and a wrong name."""
    rows: dict[str, list[Test]] = {row: [] for row in ROWS}
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                test = Test(str(path.relative_to(CHECKOUT)), node.name)
                for row in _rows_of(test):
                    rows.setdefault(row, []).append(test)
    return rows


def _rows_of(test: Test) -> set[str]:
    named = _NAMED.match(test.name) or _NAMED.match(Path(test.path).name)
    found = {named[1].upper()} if named else set()
    return found | {row for path, name, row in ALSO if test.path == f"tests/{path}" and re.match(name, test.name)}


def generated() -> str:
    """The table of docs/security.md."""
    lines = ["| | attempt | promise | tried in |", "|---|---|---|---|"]
    for name, tests in collect().items():
        row = ROWS[name]
        promise = row.promise + (f". **{row.gap}**" if row.gap else "")
        files = ", ".join(f"`{path}`" for path in dict.fromkeys(test.path.removeprefix("tests/") for test in tests))
        lines.append(f"| {name} | {row.attempt} | {promise} | {files} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """`text` of docs/security.md with its generated part written anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + "\n" + generated() + "\n" + END + tail


def run(rows: dict[str, list[Test]]) -> dict[Test, Counter[str]]:
    """Run the tests of these rows; how often each function passed, failed or was skipped."""
    wanted = dict.fromkeys(f"{test.path}::{test.name}" for tests in rows.values() for test in tests)
    found: dict[Test, Counter[str]] = {}
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        argv = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report.name}", *wanted]
        subprocess.run(argv, cwd=CHECKOUT, check=False)
        text = Path(report.name).read_bytes()
        for case in ET.fromstring(text).iter("testcase") if text else ():
            path = case.get("classname", "").replace(".", "/") + ".py"
            kinds = {child.tag for child in case}
            result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            test = Test(path, case.get("name", "").partition("[")[0])
            found.setdefault(test, Counter())[result] += 1
    return found


def shown(rows: dict[str, list[Test]], results: dict[Test, Counter[str]] | None) -> str:
    """The table for a terminal."""
    lines = []
    for name, tests in rows.items():
        row = ROWS[name]
        if results is None:
            verdict = f"{len(tests)} tests"
        else:
            total = sum((results.get(test, Counter()) for test in tests), Counter[str]())
            words = ", ".join(f"{total[kind]} {kind}" for kind in ("passed", "failed", "skipped") if total[kind])
            broken = total["failed"] or not total["passed"]
            holds = "DOES NOT HOLD" if broken else "holds in part" if row.gap else "holds"
            verdict = f"{holds}: {words or 'nothing ran'}"
        lines.append(f"{name:<4} {row.attempt}\n       {row.promise}\n       {verdict}")
        if row.gap:
            lines.append(f"       but {row.gap}")
        for path in dict.fromkeys(test.path for test in tests):
            lines.append(f"         {path}: {sum(test.path == path for test in tests)}")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """The exit code: 1 where a test failed, or a row has none."""
    parser = argparse.ArgumentParser(prog="tools/threats", description="The threats and the tests that try them.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="E1 to E19, I1 to I11; none: all")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write the generated part of docs/security.md")
    options = parser.parse_args(argv)
    unknown = [row for row in options.rows if row.upper() not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    if options.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    wanted = {row.upper() for row in options.rows} or set(ROWS)
    rows = {name: tests for name, tests in collect().items() if name in wanted}
    results = None if options.list else run(rows)
    print(shown(rows, results))
    failed = results is not None and any(count["failed"] for count in results.values())
    return int(failed or not all(rows.values()))
