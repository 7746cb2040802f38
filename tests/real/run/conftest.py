"""`egress run` as two callers start it: root, and an ordinary user with a home of its own.

The ordinary caller lives in a mount namespace made for the test: interpreter, project and home are bound to places
that an ordinary user may read (a checkout under root's home is none), and /dev/net/tun is opened to it, as it is on a
desktop. Nothing of that is seen outside.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.lacking import search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab import Lab

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
STAGE = "/mnt"
ORDINARY = 54321


class Caller:
    """Starts `egress run` with the stand-in guard, as one of the two users, in a network namespace if asked."""

    def __init__(self, uid: int, home: Path, lab: Lab | None = None) -> None:
        self.uid = uid
        self.home = home
        self.lab = lab
        self.helper = ""  # the one network program that is looked for
        self.started: list[subprocess.Popen[str]] = []

    @property
    def python(self) -> str:
        """An interpreter that the command inside can run."""
        return os.path.realpath(sys.executable) if self.uid == 0 else f"{STAGE}/python/bin/{self._name}"

    @property
    def project(self) -> str:
        return f"{STAGE}/project"  # wherever the checkout lies: the sandbox has a /tmp and a /run of its own

    @property
    def _name(self) -> str:
        return f"python{sys.version_info[0]}.{sys.version_info[1]}"

    def command(self, mode: str, *arguments: str) -> list[str]:
        """The whole command line; in mode `real` that of the program itself, with the real guard."""
        stand_in = [f"{self.project}/tests/real/run/driver.py", mode]
        driver = [self.python, *(["-m", "egress", "run"] if mode == "real" else stand_in), *arguments]
        enter = [] if self.lab is None else ["nsenter", f"--net={self.lab.sandbox.path}"]
        packages = sysconfig.get_paths()["purelib"]
        script = f"""
            mount -t tmpfs -o mode=755 tmpfs {STAGE}
            cd {STAGE}
            mkdir python project packages
            mount --bind {shlex.quote(str(PROJECT))} project
            cd "$HOME"
            [ {self.uid} != 0 ] || exec "$@"
            cd {STAGE}
            mount --bind {shlex.quote(sys.base_prefix)} python
            mount --bind {shlex.quote(packages)} packages
            mount -t tmpfs -o mode=755 tmpfs /dev/net
            mknod -m 666 /dev/net/tun c 10 200
            cd "$HOME"
            exec setpriv --reuid={self.uid} --regid={self.uid} --clear-groups "$@"
        """
        # Behind nohup, or in a script's background, we ignore some; what a shell inherits so it cannot trap.
        heard = ["env", "--default-signal=HUP,INT,QUIT"]
        return [*heard, *enter, "unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", *driver]

    def environ(self, **more: str) -> dict[str, str]:
        packages = f"{STAGE}/packages" if self.uid else os.pathsep.join(site.getsitepackages())
        return {
            "PATH": search_path(),
            "HOME": str(self.home),
            "PYTHONPATH": f"{self.project}{os.pathsep}{packages}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"HELPER": self.helper} if self.helper else {}),
            **more,
        }

    def start(self, mode: str, *arguments: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.Popen[str]:
        """Start it; ended with the test."""
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
        process = subprocess.Popen(
            self.command(mode, *arguments), env=self.environ(**(env or {})), cwd=self.home, text=True, **how
        )
        self.started.append(process)
        return process

    def run(
        self, mode: str, *arguments: str, env: dict[str, str] | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(mode, *arguments, env=env, **how)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def probe(
        self, *words: str, mode: str = "closed", options: tuple[str, ...] = ("--offline",), **how: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Try `words` inside (see probe.py): what came of them, and the stand-in's notes."""
        done = self.run(mode, *options, "--", self.python, f"{self.project}/tests/real/run/probe.py", *words, **how)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), notes(done.stderr)

    def outside(self, *words: str) -> dict[str, Any]:
        """The same, tried by the same user outside: the control that the thing tried works at all."""
        enter = [] if self.lab is None else ["nsenter", f"--net={self.lab.sandbox.path}"]
        drop = [] if self.uid == 0 else ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        python = "/usr/bin/python3" if self.uid and os.path.exists("/usr/bin/python3") else sys.executable
        script = (HERE / "probe.py").read_text()
        done = subprocess.run(
            [*enter, *drop, python, "-c", script, *words], capture_output=True, text=True, check=True, cwd="/"
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()


def notes(text: str) -> dict[str, Any]:
    """The stand-in's notes in what was said on standard error."""
    found = {}
    for line in text.splitlines():
        _, mark, rest = line.partition("egress run: note ")
        if mark:
            key, _, value = rest.partition(" ")
            found[key] = json.loads(value)
    return found


@pytest.fixture(params=["root", "ordinary"])
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """`egress run` on this machine's own network."""
    yield from _caller(request.param, None)


@pytest.fixture(params=[f"{user}-{helper}" for user in ("root", "ordinary") for helper in ("pasta", "slirp4netns")])
def connected(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Caller]:
    """`egress run` on a host whose network is the lab's, an internet that answers; with each network program."""
    user, _, helper = request.param.partition("-")
    if not shutil.which(helper, path=search_path()):
        pytest.skip(f"{helper} is not installed")
    for found in _caller(user, lab):
        found.helper = helper
        yield found


def _caller(kind: str, lab: Lab | None) -> Iterator[Caller]:
    uid = 0 if kind == "root" else ORDINARY
    # Not below pytest's own folder: every pytest that starts on this machine shuts that to ordinary users again.
    with tempfile.TemporaryDirectory(prefix="sallyport-run-") as folder:
        Path(folder).chmod(0o711)
        home = Path(folder, "home")
        home.mkdir()
        os.chown(home, uid, uid)
        found = Caller(uid, home, lab)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def read_notes() -> Callable[[str], dict[str, Any]]:
    return notes
