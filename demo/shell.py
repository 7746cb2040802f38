"""A shell that a person sits at: in the sandbox as its program would be, or outside as the operator.

One `sh` for the whole run, so that what a command takes is the command's own time. It gets a resolv.conf and a hosts
file of its own, laid over the machine's in its own mount namespace, and a home whose .curlrc and .digrc say what a
person would else have to type: no progress bar, no waiting for minutes, and a peer that only sends is fine.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from demo.result import Typed
from lab import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lab import Identity, Namespace

PATIENCE = 30.0  # seconds for one command
_MARK = b"\x1e"  # no command of ours prints it
# `$0` is the home; what follows it is what to become.
_AT_HOME = """
for file in resolv.conf nsswitch.conf hosts; do mount -B "$0/etc/$file" "/etc/$file" || exit 125; done
cd "$0" && exec "$@"
"""
_CURLRC = "silent\nshow-error\nconnect-timeout = 5\nhttp0.9\nno-buffer\n"
_ASKED = 5  # seconds for a resolver, which a busy machine may keep waiting


class Shell:
    """`run` types a command and waits for its end; `leave` starts one that goes on. Close it before its namespace."""

    def __init__(
        self,
        namespace: Namespace,
        identity: Identity,
        home: Path,
        *,
        prompt: str,
        nameserver: str,
        hosts: Mapping[str, str],
        env: Mapping[str, str],
    ) -> None:
        self.home = home
        self.prompt = prompt
        etc = home / "etc"
        etc.mkdir(parents=True)
        self._nameserver = nameserver
        self.wait_for_resolvers(_ASKED)
        (etc / "nsswitch.conf").write_text("hosts: files dns\n")
        names = {"localhost": "127.0.0.1", **hosts}
        (etc / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        (home / ".curlrc").write_text(_CURLRC)
        self._namespace = namespace
        self._argv = ["sh", "-c", _AT_HOME, str(home), *identity.prefix(), "sh"]
        self._env = {"HOME": str(home), "LC_ALL": "C", **env}
        self._left: list[subprocess.Popen[Any]] = []
        self._process = self._start(*self._argv)
        self._send(":")
        if self._read()[1]:
            raise LabError(f"no shell in {namespace.name}")

    def wait_for_resolvers(self, seconds: int) -> None:
        """How long programs in it wait for an answer from now on; each resolver is asked once."""
        # Written in place: it lies over the machine's own.
        resolv = f"nameserver {self._nameserver}\noptions timeout:{seconds} attempts:1\n"
        (self.home / "etc" / "resolv.conf").write_text(resolv)
        (self.home / ".digrc").write_text(f"+timeout={seconds} +tries=1\n")

    def run(self, command: str) -> Typed:
        """Raises LabError when it does not end within PATIENCE."""
        started = time.monotonic()
        self._send(command)
        output, code = self._read(command)
        took = (time.monotonic() - started) * 1000
        return Typed(self.prompt, command, output.decode(errors="replace"), code, took)

    def leave(self, command: str) -> subprocess.Popen[Any]:
        """Start a command and let it go on; it ends with the shell. What it writes can be read from `stdout`."""
        process = self._start(*self._argv, "-c", f"exec {command}")
        self._left.append(process)
        return process

    def close(self) -> None:
        """End it and what it is running."""
        for process in (*self._left, self._process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, *argv: str) -> subprocess.Popen[Any]:
        return self._namespace.popen(
            argv,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{{ {command}\n}} </dev/null 2>&1\nprintf '\\036%s\\036' $?\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise LabError(f"the shell behind {self.prompt} has ended") from error

    def _read(self, command: str = "") -> tuple[bytes, int]:
        """Everything up to our mark, and the exit code."""
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        deadline = time.monotonic() + PATIENCE
        data = b""
        while data.count(_MARK) < 2:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._process.kill()
                raise LabError(f"no end after {PATIENCE:g} s: {command}")
            part = os.read(stream, 65536)
            if not part:
                said = data.decode(errors="replace").strip()
                raise LabError(f"the shell behind {self.prompt} has ended{': ' if said else ''}{said}")
            data += part
        output, code, _ = data.split(_MARK, 2)
        return output, int(code)
