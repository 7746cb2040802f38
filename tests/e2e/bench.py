"""What a policy costs a sandbox's creation and deletion under OpenSandbox's server: `make bench-e2e`.

Three sandboxes in turn: without a policy, with one and our sidecar, with one and a sidecar that does nothing, which is
what the server and Docker cost whatever the sidecar. One of each is not counted: the server fills its caches.

    tools/with-docker .venv/bin/python -m tests.e2e.bench [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from lab import Internet
from tests.blackbox.test_image import build
from tests.e2e.daemon import Daemon
from tests.e2e.images import IDLE, SANDBOX, build_beside
from tests.e2e.server import Sdk, Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "opensandbox.md"
BEGIN, END = "<!-- make bench-e2e writes this -->\n", "<!-- until here -->\n"
KINDS = ("none", "idle", "ours")
POLICY = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.example.com"}]}


class Cost(NamedTuple):
    """Seconds, as the SDK's caller waits for them."""

    create: float
    delete: float


def measure(rounds: int, egress: str) -> dict[str, list[Cost]]:
    """Each kind's costs; the first of each is left out."""
    costs: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    with Internet() as internet, Daemon(internet, [egress, SANDBOX, IDLE]) as daemon:
        ours = Server(daemon, port=8190, egress=egress, execd=SANDBOX)
        idle = Server(daemon, port=8191, egress=IDLE, execd=SANDBOX)
        with ours, idle, Sdk(ours) as with_ours, Sdk(idle) as with_idle:
            for turn in range(rounds + 1):
                for kind in KINDS:
                    sdk = with_idle if kind == "idle" else with_ours
                    policy = None if kind == "none" else POLICY
                    made = sdk.ask("create", image=SANDBOX, policy=policy)
                    gone = sdk.ask("kill")
                    if made.fault or gone.fault:
                        raise SystemExit(f"bench: {kind}: {made.text or gone.text}")
                    if turn:
                        costs[kind].append(Cost(made.seconds, gone.seconds))
    return costs


def table(costs: dict[str, list[Cost]]) -> str:
    """Markdown: medians, and what the policy adds."""
    median = {
        kind: Cost(statistics.median(c.create for c in found), statistics.median(c.delete for c in found))
        for kind, found in costs.items()
    }
    names = {"none": "no policy", "idle": "policy, a sidecar that does nothing", "ours": "policy, ours"}
    lines = ["| sandbox | creation | added | deletion | added |", "|---|---|---|---|---|"]
    for kind in KINDS:
        created, deleted = median[kind]
        more = [
            "" if kind == "none" else f"{value - base:+.2f} s"
            for value, base in zip(median[kind], median["none"], strict=True)
        ]
        lines.append(f"| {names[kind]} | {created:.2f} s | {more[0]} | {deleted:.2f} s | {more[1]} |")
    return "\n".join(lines) + f"\n\nMedians of {len(costs['ours'])}, in turn.\n"


def main() -> int:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(prog="make bench-e2e", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how many of each kind [5]")
    parser.add_argument("--write", action="store_true", help="into docs/opensandbox.md")
    asked = parser.parse_args()
    egress = build("egress", "sallyport-egress:test")
    build_beside(egress)
    text = table(measure(asked.rounds, egress))
    sys.stdout.write(text)
    if asked.write:
        page = PAGE.read_text()
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"bench: {error}")
