"""How a run begins and ends: the order of things, exit codes, signals, the terminal, and that nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egress.isolation import connectivity

if TYPE_CHECKING:
    from collections.abc import Iterator


def until(condition: Any, seconds: float = 60.0) -> bool:
    """Whether `condition()` came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def namespaces() -> dict[str, set[int]]:
    """Network namespace -> processes in it, for the whole machine."""
    found: dict[str, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.setdefault(os.readlink(entry / "ns/net"), set()).add(int(entry.name))
    return found


@contextlib.contextmanager
def held(inside: str) -> Iterator[None]:
    """Keep a namespace's number from being given to the next one, as it would be in the very moment of its end."""
    pid = min(namespaces()[inside])
    kept = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert os.readlink(f"/proc/self/fd/{kept}") == inside
        yield
    finally:
        os.close(kept)


def family(pid: int) -> set[int]:
    """`pid` and all that descend from it."""
    parents: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, set()).add(int(entry.name))
    found, new = {pid}, {pid}
    while new:
        new = set().union(*(parents.get(one, set()) for one in new)) - found
        found |= new
    return found


def born(pid: int) -> str:
    """When a process began, which tells it from another that has its number by now; "" where there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 77", 77), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_exit_code_is_the_commands(caller: Any, script: str, code: int) -> None:
    assert caller.run("closed", "--offline", "--", "sh", "-c", script).returncode == code


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [("sp-no-such-command", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")],
)
def test_a_command_that_cannot_run(caller: Any, command: str, code: int, words: str) -> None:
    done = caller.run("closed", "--offline", "--", command)
    assert (done.returncode, words in done.stderr) == (code, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_signals_reach_the_command(caller: Any, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f'trap "echo got {name}; exit 9" {name}; echo ready; while :; do sleep 0.02; done'
    process = caller.start("closed", "--offline", "--", "sh", "-c", script)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"got {name}\n"
    assert process.wait(60) == 9


def test_a_signal_that_the_command_does_not_handle_ends_it(caller: Any) -> None:
    process = caller.start("closed", "--offline", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


def test_standard_streams_are_passed_through(caller: Any) -> None:
    process = caller.start("closed", "--offline", "--quiet", "--", "sh", "-c", "cat; echo err >&2", stdin=-1)
    out, err = process.communicate("some text")
    assert (out, err) == ("some text", "err\n")


def test_sigkill_leaves_nothing(connected: Any) -> None:
    script = "readlink /proc/self/ns/net; sleep 600 & setsid sleep 600 & sleep 600"
    process = connected.start("closed", "--", "sh", "-c", script)
    inside = process.stdout.readline().strip()
    members: dict[tuple[int, str], str] = {}

    def complete() -> bool:
        members.clear()
        for pid in family(process.pid):
            with contextlib.suppress(OSError):  # one that was on its way out
                members[pid, born(pid)] = Path(f"/proc/{pid}/comm").read_text().strip()
        return list(members.values()).count("sleep") == 3

    assert until(complete)
    names = list(members.values())
    assert any(name.startswith(("pasta", "passt", "slirp4netns")) for name in names), names
    with held(inside):
        process.kill()
        process.wait()
        assert until(lambda: not any(born(pid) == since for pid, since in members))
        assert until(lambda: inside not in namespaces())


def test_an_ordinary_end_leaves_nothing(connected: Any) -> None:
    script = "readlink /proc/self/ns/net; setsid sleep 600 & read _; exit 4"
    process = connected.start("closed", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    inside = process.stdout.readline().strip()
    with held(inside):
        process.communicate("\n", timeout=120)
        assert process.returncode == 4
        assert until(lambda: inside not in namespaces())


def test_the_guards_death_ends_the_command(caller: Any) -> None:
    done = caller.run("mortal", "--offline", "--", "sleep", "6000")
    assert done.returncode == 125
    assert "guard has ended" in done.stderr


def test_nothing_is_connected_before_the_lock_and_nothing_runs_before_ready(connected: Any, read_notes: Any) -> None:
    done = connected.run("slow", "--", "sh", "-c", "cut -d' ' -f1 /proc/uptime; cat /proc/net/dev")
    notes = read_notes(done.stderr)
    assert notes["devices"] == ["lo"]
    assert notes["devices-before-lock"] == ["lo"]  # the stand-in waited for longer than pasta takes
    uptime, *rest = done.stdout.splitlines()
    assert float(uptime) >= notes["ready"] - 0.02
    assert len(rest) == 4, "no device came after the lock"  # two lines of heading, loopback, and the way out


def test_offline_has_loopback_only(connected: Any) -> None:
    done = connected.run("open", "--offline", "--", "cat", "/proc/net/dev")
    assert len(done.stdout.splitlines()) == 3
    assert "loopback" not in done.stderr


def test_without_a_network_program_the_word_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connectivity, "FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    helper, words = connectivity.find()
    assert helper is None
    assert "apt-get install passt" in words


# -- the terminal --------------------------------------------------------------------------------------------------
class Screen:
    """A run in a terminal of its own, in a session of its own, with what came to the screen."""

    def __init__(self, caller: Any, *arguments: str) -> None:
        self.text = ""
        self.master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = caller.start(
            "closed", "--offline", *arguments, stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, pattern: str, seconds: float = 60.0) -> str:
        """Read until `pattern` has come to the screen."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} never came: {self.text!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.text += os.read(self.master, 4096).decode()
                except OSError:
                    raise AssertionError(f"{pattern!r} never came: {self.text!r}") from None
        return self.text

    def close(self) -> None:
        os.close(self.master)


@pytest.fixture
def screen(caller: Any) -> Iterator[Any]:
    found: list[Screen] = []

    def start(*arguments: str) -> Screen:
        found.append(Screen(caller, *arguments))
        return found[-1]

    yield start
    for one in found:
        one.close()


COUNT = """
import os, signal, time
count = 0
def got(*_):
    global count
    count += 1
    os.write(1, b"int %d\\n" % count)
signal.signal(signal.SIGINT, got)
print("here we go", flush=True)
while count < 2:
    time.sleep(0.05)
time.sleep(0.3)
print("end", count, flush=True)
"""


def test_ctrl_c_reaches_the_command_once(screen: Any, caller: Any) -> None:
    run = screen("--", caller.python, "-c", COUNT)
    run.wait("here we go")
    run.type("\x03")
    run.wait("int 1")
    time.sleep(0.3)
    run.type("\x03")
    run.wait("end 2")
    assert run.process.wait(60) == 0


def test_ctrl_z_stops_and_continues_the_run(screen: Any) -> None:
    run = screen("--", "sh", "-c", "echo here we go; read line; echo got $line")
    run.wait("here we go")
    run.type("\x1a")
    pid, status = os.waitpid(run.process.pid, os.WUNTRACED)
    assert (pid, os.WIFSTOPPED(status)) == (run.process.pid, True)
    run.process.send_signal(signal.SIGCONT)
    run.type("hello\n")
    run.wait("got hello")
    assert run.process.wait(60) == 0


def test_an_interactive_shell_has_job_control(screen: Any) -> None:
    run = screen("--", "bash", "--norc", "-i")
    run.type("echo one $((1 + 1))\n")
    text = run.wait("one 2")
    assert "job control" not in text
    run.type("sh -c 'echo two $((1 + 2)); exec sleep 600'\n")
    run.wait("two 3")  # it has the terminal
    run.type("\x1a")
    run.wait("Stopped")
    run.type("kill -KILL %1; while kill -0 %1 2>&-; do sleep 0.05; done\n\n")
    run.wait("Killed")
    run.type("exit 5\n")
    assert run.process.wait(60) == 5


def test_a_window_change_reaches_the_command(screen: Any) -> None:
    run = screen(
        "--", "bash", "-c", "trap 'echo size $(stty size)' WINCH; echo here we go; while :; do sleep 0.05; done"
    )
    run.wait("here we go")
    fcntl.ioctl(run.master, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    run.wait("size 33 77")
    run.type("\x03")
    assert run.process.wait(60) == 130


def test_nothing_can_be_typed_into_the_callers_terminal(screen: Any, caller: Any) -> None:
    probe = f"{caller.project}/tests/real/run/probe.py"
    run = screen("--", caller.python, probe, "tiocsti=")
    said = re.search(r"\{.tiocsti.*\}", run.wait(r"\{.tiocsti.*\}"))
    assert said is not None
    assert json.loads(said[0]) == {"tiocsti=": "EPERM"}
    assert run.process.wait(60) == 0


def test_the_callers_process_group_cannot_be_signalled(caller: Any) -> None:
    script = "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(0, 15); print('alive')"
    done = caller.run("closed", "--offline", "--", caller.python, "-c", script)
    assert (done.returncode, done.stdout) == (0, "alive\n")
