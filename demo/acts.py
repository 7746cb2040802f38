"""The acts, in order. Each types commands, compares what came back, and notes a row for each step."""

from __future__ import annotations

import subprocess
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, NamedTuple

from demo.result import Row, milliseconds
from demo.stage import ALLOWED, INTRANET, PACKAGES, until
from lab import LabError
from lab.client import NoReply
from lab.network import METADATA, PUBLIC_RESOLVER
from lab.sidecar import TOKEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from demo.result import Typed
    from demo.stage import Stage

AT_ONCE = 100.0  # milliseconds: far below any time-out, far above a busy machine's hiccup
CUT_WITHIN = 1000.0
BACK_WITHIN = 1000.0
UNHURRIED = 15.0  # seconds, in the place of either, where no step fails for its time
FLOW = 90  # octets of a download that make it a flowing one: ten beats of the peer


class Act(NamedTuple):
    """`play` notes its rows itself; `needed`: nothing after it makes sense if it fails."""

    title: str
    play: Callable[[Stage], None]
    needed: bool = False


def without_the_guard(stage: Stage) -> None:
    """The positive control: each attempt of the later acts arrives as long as nobody guards."""
    asked = ALLOWED, PACKAGES, INTRANET, stage.packages, METADATA
    fetched = [stage.type(stage.sandbox, f"curl http://{name}/", lines=1) for name in asked]
    direct = stage.type(stage.sandbox, f"dig +short @{PUBLIC_RESOLVER} {PACKAGES}")
    reached = sum(_fetched(one) for one in fetched) + (direct.output.strip() == stage.packages)
    reached -= not any(query.server == PUBLIC_RESOLVER for query in stage.lab.dns.queries(PACKAGES))
    stage.row(
        Row("unguarded", "open without the guard", "6 of 6 reached", f"{reached} of 6 reached", None, reached == 6)
    )
    stage.lab.sites.forget()
    stage.lab.dns.forget()


def it_comes_up(stage: Stage) -> None:
    """Locked down first, ready a moment later; never ready while something still gets out."""
    stage.type(stage.operator, 'echo "$OPENSANDBOX_EGRESS_RULES"')
    stage.screen.typed(stage.operator.prompt, "egress serve &")
    sidecar, lab = stage.sidecar, stage.lab
    sidecar.start()
    said_ready_while_open = False

    def locked() -> bool:
        nonlocal said_ready_while_open
        if sidecar.returncode is not None:
            raise LabError(f"the sidecar has ended: {sidecar.log.strip()}")
        ready = _healthy(stage)
        if lab.connect(stage.packages, 80) != "connected":
            return True
        said_ready_while_open |= ready
        return ready  # it will not be locked any more

    until(locked, 30, "locked down")
    lock = (time.monotonic() - sidecar.started) * 1000
    sidecar.wait_ready()
    ready = (time.monotonic() - sidecar.started) * 1000
    lab.sites.forget()
    seen = f"locked after {milliseconds(lock)}, then ready"
    ok = not said_ready_while_open
    stage.row(Row("ready", "the guard comes up", "locked, then ready", seen if ok else "open, and ready", ready, ok))


def an_allowed_name(stage: Stage) -> None:
    fetched = stage.type(stage.sandbox, f"curl http://{ALLOWED}/", lines=1)
    ok = _fetched(fetched)
    stage.row(
        Row("allowed-name", "allowed name", "fetched", "fetched" if ok else _short(fetched), fetched.milliseconds, ok)
    )


def a_denied_name(stage: Stage) -> None:
    fetched = stage.type(stage.sandbox, f"curl http://{PACKAGES}/", lines=1)
    looked_up = stage.type(stage.sandbox, f"getent ahosts {PACKAGES}")
    asked = stage.type(stage.sandbox, f"dig {PACKAGES} | grep -E 'status|EDE'")
    reason = "NXDOMAIN" in asked.output and "Blocked" in asked.output and PACKAGES in asked.output
    ok = fetched.code == 6 and looked_up.code == 2 and reason and not stage.lab.dns.queries(PACKAGES)
    seen = "NXDOMAIN, with its reason" if ok else f"curl: {_short(fetched)}"
    stage.row(Row("denied-name", "denied name", "NXDOMAIN, with its reason", seen, fetched.milliseconds, ok))


def ways_around(stage: Stage) -> None:
    _refused_at_once(stage, "literal", "address without a name", stage.packages)
    asked = stage.type(stage.sandbox, f"dig @{PUBLIC_RESOLVER} {PACKAGES} | grep -E 'status|EDE'")
    reached = [query for query in stage.lab.dns.queries() if query.server == PUBLIC_RESOLVER]
    ok = "NXDOMAIN" in asked.output and "Blocked" in asked.output and not reached
    seen = "the guard answered" if ok else "it was reached" if reached else _short(asked)
    stage.row(Row("resolver", "another resolver", "the guard answers", seen, asked.milliseconds, ok))
    _refused_at_once(stage, "metadata", "metadata address", METADATA)
    asked = stage.type(stage.sandbox, f"dig {INTRANET} | grep -E 'status|EDE'")
    fetched = stage.type(stage.sandbox, f"curl http://{INTRANET}/", lines=1)
    ok = "NOERROR" in asked.output and stage.private in asked.output and fetched.code == 6
    ok = ok and not stage.arrived(stage.private)
    seen = "address taken out" if ok else _short(fetched)
    stage.row(Row("private", "name of a private address", "address taken out", seen, asked.milliseconds, ok))


def the_policy_changes(stage: Stage) -> None:
    rules = stage.rules()
    everything = '[{"action": "allow", "target": "*"}]'
    tried = stage.type(
        stage.sandbox,
        f"curl -X PATCH -w '%{{http_code}}\\n' http://127.0.0.1:18080/policy \\\n    -d '{everything}'",
    )
    status = tried.output.strip().rpartition("\n")[2] or _short(tried)
    same = stage.rules() == rules
    ok = status == "401" and same
    seen = status if same else f"{status}, and the policy has changed"
    stage.row(Row("no-token", "policy change without token", "401", seen, tried.milliseconds, ok))
    rule = f'[{{"action": "allow", "target": "{PACKAGES}"}}]'
    changed = stage.type(
        stage.operator,
        f"curl -X PATCH -H \"{TOKEN_HEADER}: $TOKEN\" http://guard:18080/policy \\\n    -d '{rule}'",
    )
    ok = '"ok"' in changed.output
    stage.row(
        Row("patched", "policy change with token", "ok", "ok" if ok else _short(changed), changed.milliseconds, ok)
    )
    fetched = stage.type(stage.sandbox, f"curl http://{PACKAGES}/", lines=1)
    ok = _fetched(fetched)
    stage.row(
        Row(
            "works-now",
            "the same fetch again",
            "fetched",
            "fetched" if ok else _short(fetched),
            fetched.milliseconds,
            ok,
        )
    )


def a_rule_goes(stage: Stage) -> None:
    """Two downloads flow; the rule of one goes. The peers send ten octets fifty times a second, HTTP 0.9."""
    cut, cut_file = _download(stage, PACKAGES)
    kept, kept_file = _download(stage, ALLOWED)
    until(lambda: _size(cut_file) > FLOW and _size(kept_file) > FLOW, 30, "two downloads that flow")
    stage.type(stage.sandbox, "wc -c *.part | head -2")
    command = f'curl -X DELETE -H "{TOKEN_HEADER}: $TOKEN" http://guard:18080/policy \\\n    -d \'["{PACKAGES}"]\''
    started = time.monotonic()
    stage.type(stage.operator, command)
    longest = UNHURRIED if stage.unhurried else 5.0
    try:
        cut.wait(longest)
    except subprocess.TimeoutExpired:
        pass
    took = (time.monotonic() - started) * 1000
    ended = cut.poll() is not None
    if ended and cut.stdout is not None:
        said = cut.stdout.read().decode(errors="replace").strip()
        stage.screen.came([f"[1] exit {cut.returncode}: {said}"])
    ok = ended and stage.in_time(took, CUT_WITHIN)
    seen = "cut" if ended else f"still flowing after {longest:g} s"
    stage.row(Row("cut", "download whose rule went", "cut within 1 s", seen, took, ok))
    before = _size(kept_file)
    started = time.monotonic()
    flows = _soon(lambda: _size(kept_file) > before + FLOW, 15) and kept.poll() is None
    stage.type(stage.sandbox, "wc -c *.part | head -2")
    seen = "goes on" if flows else "stopped"
    stage.row(Row("kept", "download of another name", "goes on", seen, None, flows))


def it_is_killed(stage: Stage) -> None:
    """The worker alone; then all of it. Nothing opens."""
    lab, sidecar = stage.lab, stage.sidecar
    rules = stage.rules()
    lab.query(ALLOWED)
    worker = sidecar.worker_pid
    command = f"kill -KILL {worker}    # the worker"
    stage.screen.typed(stage.operator.prompt, command)
    started = time.monotonic()
    stage.note(stage.operator.run(command))
    took = _answered_again(stage, worker, started)
    again = stage.type(stage.sandbox, f"dig +short {ALLOWED}; curl http://{PACKAGES}/")
    same = stage.rules() == rules
    ok = stage.in_time(took, BACK_WITHIN) and again.output.startswith(stage.allowed) and again.code == 6 and same
    seen = "answers, policy as before" if ok else "another policy" if not same else _short(again)
    stage.row(Row("worker-killed", "worker killed", "answers, policy as before", seen, took, ok))
    pid = sidecar.pid
    stage.type(stage.operator, f"kill -KILL {pid}    # all of it")
    sidecar.kill()  # has been: this collects it
    until(lambda: not _runs(pid), 30, "the sidecar's end")
    lab.sites.forget()
    stage.sandbox.wait_for_resolvers(1)  # there is none
    commands = (f"curl http://{PACKAGES}/", f"curl http://{stage.packages}/", f"curl http://{METADATA}/")
    tried = [stage.type(stage.sandbox, command, lines=1) for command in commands]
    asked = stage.type(stage.sandbox, f"dig +short @{PUBLIC_RESOLVER} {PACKAGES} | tail -1")
    ok = all(one.code in (6, 7) for one in tried) and "no servers" in asked.output
    ok = ok and not stage.arrived(stage.packages) and not stage.arrived(METADATA)
    seen = "closed" if ok else "; ".join(_short(one) for one in tried if one.code not in (6, 7)) or _short(asked)
    stage.row(Row("all-killed", "whole sidecar killed", "closed", seen, None, ok))


ACTS = (
    Act("Without the guard", without_the_guard),
    Act("The guard comes up, with one rule", it_comes_up, needed=True),
    Act("A name that the policy allows", an_allowed_name),
    Act("A name that no rule allows", a_denied_name),
    Act("Ways around", ways_around),
    Act("The policy changes while it runs", the_policy_changes),
    Act("A rule goes, and takes its open connection with it", a_rule_goes),
    Act("The guard is killed", it_is_killed),
)


# -- what several acts do -----------------------------------------------------------------------------------------
def _refused_at_once(stage: Stage, ident: str, title: str, address: str) -> None:
    """curl shows it; the time is a bare connection's, without curl's own start."""
    fetched = stage.type(stage.sandbox, f"curl http://{address}/", lines=1)
    started = time.monotonic()
    outcome = stage.lab.connect(address, 80)
    took = (time.monotonic() - started) * 1000
    ok = fetched.code == 7 and outcome == "refused" and stage.in_time(took, AT_ONCE) and not stage.arrived(address)
    seen = "refused" if ok else outcome if not _fetched(fetched) else "fetched"
    stage.row(Row(ident, title, "refused at once", seen, took, ok))


def _healthy(stage: Stage) -> bool:
    try:
        return stage.sidecar.api("GET", "/healthz", token=None, timeout=0.5).status == 200
    except (OSError, HTTPException):
        return False


def _download(stage: Stage, name: str) -> tuple[subprocess.Popen[bytes], Path]:
    command = f"curl -o {name}.part http://{name}:19/"
    stage.screen.typed(stage.sandbox.prompt, f"{command} &")
    return stage.sandbox.leave(command), stage.sandbox.home / f"{name}.part"


def _answered_again(stage: Stage, dead: int, started: float) -> float:
    """Milliseconds from a kill to the next answer. One query is enough: it waits in the socket for the next worker."""
    longest = UNHURRIED if stage.unhurried else BACK_WITHIN / 1000
    while time.monotonic() - started < longest:
        try:
            stage.lab.query(ALLOWED, timeout=BACK_WITHIN / 1000)
        except NoReply:
            continue
        if not _runs(dead):
            break
    return (time.monotonic() - started) * 1000


def _runs(pid: int) -> bool:
    """Whether a process is there and not only waiting to be collected."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _soon(condition: Callable[[], bool], seconds: float) -> bool:
    try:
        until(condition, seconds, "")
    except LabError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _fetched(one: Typed) -> bool:
    return one.code == 0 and one.output.startswith("Hello from")


def _short(one: Typed) -> str:
    """The first line of what came, for a table."""
    line = next(iter(one.output.splitlines()), f"nothing, exit {one.code}")
    return line if len(line) <= 60 else line[:57] + "..."
