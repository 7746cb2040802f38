"""The demo as a person runs it: as root and as an ordinary user, to the end and interrupted, and with no guard at all.

What it leaves behind is looked for here by other means than its own: processes by their session, files by a TMPDIR of
its own, namespaces by its pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.play import PROGRAMS
from demo.residue import Watch
from demo.shell import Shell
from lab import NOBODY, ROOT, Lab
from lab.lacking import lacking, search_path

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_PYTHON = "/usr/bin/python3"  # ours may lie in a home that nobody else can enter
LIMIT = 120.0  # seconds a run may take on a machine that is busy with others
STEPS = [
    "unguarded",
    "ready",
    "allowed-name",
    "denied-name",
    "literal",
    "resolver",
    "metadata",
    "private",
    "no-token",
    "patched",
    "works-now",
    "cut",
    "kept",
    "worker-killed",
    "all-killed",
    "residue",
]
ALLOW_ALL = """
import sys
from demo.play import run
from demo.screen import Screen
screen = Screen(sys.stdout)
result = run(screen, root=True, policy={"defaultAction": "allow", "egress": []}, unhurried=True)
screen.table(result)
screen.conclusion(result)
sys.exit(1 if result.failed else 0)
"""


class Demo:
    """A run of it, in a session and with a TMPDIR of its own."""

    def __init__(self, argv: Sequence[str], tmp: Path, env: dict[str, str] | None = None) -> None:
        self.tmp = tmp / "tmp"
        self.tmp.mkdir()
        self.tmp.chmod(0o777)
        self.process = subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env={"PATH": search_path(), "TMPDIR": str(self.tmp), "PYTHONUTF8": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out = self.err = ""

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode

    def left(self) -> list[str]:
        """What of it stays there: who was killed has a moment to go."""
        deadline = time.monotonic() + 10
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _left(self) -> list[str]:
        pid = self.process.pid
        folder = Path("/run/netns")
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        return [
            *(name for name in names if name.startswith(f"sp-{pid}-")),
            *(f"process {one}" for one in session(pid)),
            *(f"file {one}" for one in self.tmp.iterdir()),
        ]


def session(leader: int) -> list[int]:
    """The processes of a session: whatever the demo started, and what that started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def as_root() -> list[str]:
    reason = lacking() or programs()
    if reason:
        pytest.skip(reason)
    return [sys.executable, "-m", "demo", "--fast", "--unhurried"]


def as_user() -> tuple[list[str], dict[str, str]]:
    """How to run the demo as an ordinary user, and in what environment; skips where that can't be."""
    env = {
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), sysconfig.get_path("purelib")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if programs():
        pytest.skip(programs())
    if os.geteuid() != 0:
        return [sys.executable, "-m", "demo", "--fast", "--unhurried"], env
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON} that another user could run")
    if nobody("ls", str(CHECKOUT / "demo"), env["PYTHONPATH"].rpartition(os.pathsep)[2]):
        pytest.skip("this checkout cannot be read by another user")
    if nobody("unshare", "--user", "--map-root-user", "--net", "true"):
        pytest.skip("ordinary users may not make user namespaces here")
    if nobody(SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"):
        pytest.skip(f"{SYSTEM_PYTHON} is older than 3.11")
    return [*NOBODY.prefix(), SYSTEM_PYTHON, "-m", "demo", "--fast", "--unhurried"], env


def nobody(*argv: str) -> int:
    return subprocess.run([*NOBODY.prefix(), *argv], env={"PATH": search_path()}, capture_output=True).returncode


def programs() -> str:
    path = search_path().split(":")
    absent = [name for name in PROGRAMS if not any(os.access(Path(folder, name), os.X_OK) for folder in path)]
    return f"programs are missing: {' '.join(absent)}" if absent else ""


def test_as_root_every_step_comes_out_and_nothing_stays(tmp_path: Path) -> None:
    demo = Demo(as_root(), tmp_path)
    assert demo.wait() == 0, demo.out + demo.err
    assert demo.err == ""
    assert "All 16 steps came out as expected" in demo.out
    assert demo.out.rstrip().endswith("as root.")
    assert "\x1b" not in demo.out
    assert demo.left() == []
    for heard in (
        "curl: (6) Could not resolve host: packages.example.org",
        "EDE: 15 (Blocked): (packages.example.org: default deny)",
        "curl: (7) Failed to connect to 198.51.100.20 port 80",
        "10.99.0.10 is a special address",
        "missing or wrong token",
        "Connection reset by peer",
    ):
        assert heard in demo.out


def test_as_an_ordinary_user_too(tmp_path: Path) -> None:
    argv, env = as_user()
    demo = Demo(argv, tmp_path, env)
    assert demo.wait() == 0, demo.out + demo.err
    assert demo.err == ""
    assert demo.out.rstrip().endswith("as an ordinary user, in a user namespace.")
    assert demo.left() == []


def test_its_result_is_for_programs_as_well(tmp_path: Path) -> None:
    demo = Demo([*as_root(), "--json"], tmp_path)
    assert demo.wait() == 0, demo.out + demo.err
    result: dict[str, Any] = json.loads(demo.out)
    assert result["ok"] is True
    assert [step["id"] for step in result["steps"]] == STEPS
    assert all(step["ok"] and step["title"] and step["seen"] for step in result["steps"])
    times = {step["id"]: step["milliseconds"] for step in result["steps"]}
    for measured in ("literal", "cut"):
        assert 0 < times[measured] < 1000 * LIMIT
    assert any(one["prompt"] == "operator$" and "PATCH" in one["command"] for one in result["commands"])


def test_a_guard_that_lets_everything_through_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    as_root()
    demo = Demo([sys.executable, "-c", ALLOW_ALL], tmp_path)
    assert demo.wait() == 1, demo.out + demo.err
    last = demo.out.rstrip().splitlines()[-1]
    assert "steps did not come out as expected" in last
    for title in ("denied name", "address without a name", "another resolver"):
        assert title in last
    assert "metadata address" not in last  # default allow leaves that one closed
    assert demo.left() == []


def test_a_shell_ends_with_all_that_it_runs(tmp_path: Path) -> None:
    if reason := lacking():
        pytest.skip(reason)
    with Lab() as lab, contextlib.closing(Watch([lab.sandbox])) as watch:
        others = set(watch.inside())
        shell = Shell(lab.sandbox, ROOT, tmp_path / "home", prompt="$", nameserver="192.0.2.53", hosts={}, env={})
        shell.run("sh -c 'sleep 600 & sleep 600' >/dev/null &")
        shell.leave("sh -c 'sleep 600 & sleep 600'")
        while len(set(watch.inside()) - others) < 7:  # three shells, and four that sleep
            time.sleep(0.01)
        shell.close()
        deadline = time.monotonic() + 10
        while left := set(watch.inside()) - others:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("act", ["1  ", "5  ", "8  "])
def test_it_can_be_interrupted_and_cleans_up(tmp_path: Path, number: signal.Signals, act: str) -> None:
    demo = Demo(as_root(), tmp_path)
    assert demo.process.stdout is not None
    while not (line := demo.process.stdout.readline()).startswith(act):
        assert line, demo.process.communicate()
    if number == signal.SIGINT:
        os.killpg(demo.process.pid, number)  # a terminal's Ctrl-C is heard by all of them
    else:
        demo.process.send_signal(number)
    assert demo.wait() == 128 + number
    assert demo.err == "demo: interrupted; everything is taken down\n"
    assert demo.left() == []


def test_what_is_lacking_is_said(tmp_path: Path) -> None:
    demo = Demo([sys.executable, "-m", "demo"], tmp_path, {"PATH": "/nowhere"})
    code = demo.wait()
    if code == 0:
        pytest.skip("every program is in the folders that are always searched")
    assert code == 3
    assert demo.err.startswith("demo: this machine cannot show it: ")
    assert "packages are missing: " in demo.err


def test_help_teaches(tmp_path: Path) -> None:
    demo = Demo([sys.executable, "-m", "demo", "--help"], tmp_path)
    assert demo.wait() == 0
    for word in ("--fast", "--unhurried", "--json", "exit code", "Ctrl-C", "ordinary user"):
        assert word in demo.out
