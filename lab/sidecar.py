"""The sidecar in the sandbox's namespace, started as a container runtime would: an environment and no arguments.

It gets a `/var` and a `/run` of its own (so `/var/egress` is private and starts empty), a `resolv.conf` that names the
lab's resolver, the capabilities of `--cap-drop ALL --cap-add NET_ADMIN`, and an environment with nothing in it but what
the test gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import http
from lab.errors import LabError
from lab.identity import SIDECAR, Identity

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from typing import Self

    from lab.network import Lab

TOKEN = "correct-horse-battery-staple"
TOKEN_HEADER = "OPENSANDBOX-EGRESS-AUTH"
_PREFIX = "OPENSANDBOX_EGRESS_"
_DEFAULT_PORT = 18080
_RELAY = "egress-names"  # the name of the name guard's process
# `$0` is the sidecar's folder; everything after it is what to become.
_OWN_ROOMS = """
[ ! -e "$0/resolv.conf" ] || mount -B "$0/resolv.conf" /etc/resolv.conf || exit 125
mount -B "$0/var" /var && mount -B "$0/run" /run && exec "$@"
"""


class Sidecar:
    """A running `egress serve`. A context manager; on entry it is ready, unless `wait=False`.

    `env` is laid over the lab's defaults (token, upstream); names without the prefix get it, so `{"MODE": "dns"}` is
    `OPENSANDBOX_EGRESS_MODE`, and None takes a variable away. `policy` becomes `OPENSANDBOX_EGRESS_RULES`. With
    `as_pid1` it runs in a PID namespace of its own, as PID 1. `restart` starts it anew, with the same /var/egress.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        policy: Any = None,
        env: Mapping[str, str | None] | None = None,
        identity: Identity = SIDECAR,
        as_pid1: bool = False,
        wait: bool = True,
        resolv_conf: str = "nameserver 203.0.113.53\n",
        argv: tuple[str, ...] = (),
    ) -> None:
        self.lab = lab
        self._identity = identity
        self._as_pid1 = as_pid1
        self._wait = wait
        self._argv = [*(argv or (str(Path(sys.prefix, "bin", "egress")), "serve"))]
        self._folder = tempfile.TemporaryDirectory(prefix="sallyport-lab-")
        folder = Path(self._folder.name)
        self.state = folder / "var" / "egress"  # what the sidecar sees as /var/egress
        self.state.mkdir(parents=True)
        self.run = folder / "run"  # and as /run
        self.run.mkdir()
        # Where resolv.conf is a link into /run, it has to lie in the sidecar's /run; else it is laid over the host's.
        resolv = Path(os.path.realpath("/etc/resolv.conf"))
        linked = resolv.is_relative_to("/run")
        place = self.run / resolv.relative_to("/run") if linked else folder / "resolv.conf"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(resolv_conf)
        self._log = folder / "log"
        self._log.touch()
        self.env: dict[str, str] = {
            _PREFIX + "TOKEN": TOKEN,
            _PREFIX + "DNS_UPSTREAM": "203.0.113.53",
        }
        if policy is not None:
            self.env[_PREFIX + "RULES"] = policy if isinstance(policy, str) else json.dumps(policy)
        for name, value in (env or {}).items():
            full = name if name.startswith(("OPENSANDBOX_", "OTEL_")) else _PREFIX + name
            self.env.pop(full, None)
            if value is not None:
                self.env[full] = value
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0  # CLOCK_MONOTONIC just before exec

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it; with `wait` return when /healthz says 200. Raises LabError with its log after a minute."""
        if sys.prefix.startswith(("/var/", "/run/")):
            raise LabError(f"the sidecar gets a /var and a /run of its own, so it would not find {sys.prefix}")
        become = [*self._identity.prefix(), *self._argv]
        if self._as_pid1:
            become = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *become]
        with self._log.open("ab") as log:
            self.started = time.monotonic()
            self.process = self.lab.sandbox.popen(
                ["/bin/sh", "-c", _OWN_ROOMS, self._folder.name, *become], env=self.env, stdout=log, stderr=log, cwd="/"
            )
        if self._wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until /healthz answers 200. Raises LabError with the log."""
        deadline = time.monotonic() + seconds
        said = "nothing listens"
        while time.monotonic() < deadline:
            if self.returncode is not None:
                raise LabError(f"the sidecar ended with exit code {self.returncode}:\n{self.log}")
            with contextlib.suppress(OSError):
                answer = self.api("GET", "/healthz", token=None, timeout=10.0)
                if answer.status == 200:
                    return
                said = f"{answer.status} {answer.text}"
            time.sleep(0.002)
        raise LabError(f"the sidecar is not ready after {seconds:g} s ({said}):\n{self.log}")

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def pid(self) -> int:
        """The supervisor's, as this namespace counts. Raises LabError while there is none."""
        if self.process is None:
            raise LabError("the sidecar is not started")
        if not self._as_pid1:
            return self.process.pid
        # What prepares its rooms has children too, which come and go before it is there.
        for child in _children(self.process.pid):
            if _is_first(child):
                return child
        raise LabError(f"the sidecar is not there yet, or has ended:\n{self.log}")

    @property
    def is_there(self) -> bool:
        """Whether `pid` has an answer: some time after `start` without `wait`, and until it ends."""
        with contextlib.suppress(LabError):
            return self.pid > 0
        return False

    @property
    def worker_pid(self) -> int:
        """The worker's. Raises LabError while there is none."""
        children = [child for child in _children(self.pid) if _name(child) != _RELAY]
        if not children:
            raise LabError(f"the sidecar has no worker:\n{self.log}")
        return children[0]

    @property
    def relay_pid(self) -> int:
        """The name guard's. Raises LabError while there is none."""
        children = [child for child in _children(self.pid) if _name(child) == _RELAY]
        if not children:
            raise LabError(f"the sidecar has no name guard:\n{self.log}")
        return children[0]

    def kill_worker(self) -> int:
        """SIGKILL the worker, as a crash would end it; its pid."""
        pid = self.worker_pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def terminate(self, seconds: float = 60.0, number: int = signal.SIGTERM) -> int:
        """SIGTERM, as `docker stop` does; the exit code. Raises subprocess.TimeoutExpired."""
        return self._end(number, seconds)

    def kill(self) -> int:
        """SIGKILL the supervisor; the worker must follow."""
        return self._end(signal.SIGKILL, 60.0)

    def restart(self) -> None:
        """Start it again after `terminate` or `kill`, as a container's restart would: same state, same environment."""
        self.start()

    def close(self) -> None:
        """End it whatever it is doing, and whoever belongs to it. The rules that it leaves go with the namespace (or
        `Lab.unguard`)."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._folder.cleanup()

    def _end(self, number: int, seconds: float) -> int:
        """Who belongs to it dies with it, but a moment later, and until then has its ports and would answer in the next
        one's place: all of them are waited for."""
        if self.process is None:
            raise LabError("the sidecar is not started")
        family: list[int] = []
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, LabError):
                pid = self.pid
                family = _descendants(self.process.pid)
                os.kill(pid, number)
                break
            if time.monotonic() > deadline:
                break  # and the wait says so
            time.sleep(0.002)  # on its way, be it up or down
        code = self.process.wait(seconds)
        while any(map(_lives, family)):
            if time.monotonic() > deadline:
                raise LabError(f"the sidecar has ended, and of its processes {family} some have not:\n{self.log}")
            time.sleep(0.002)
        return code

    # -- talk ---------------------------------------------------------------------------------------------------

    def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        address: str = "127.0.0.1",
        port: int = _DEFAULT_PORT,
    ) -> http.Response:
        """Call the API from inside the sandbox. `body` is sent as it is when bytes or text, else as JSON."""
        data = body.encode() if isinstance(body, str) else body
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        fields = dict(headers or {})
        if token is not None:
            fields[TOKEN_HEADER] = token
        sock = self.lab.sandbox.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect((address, port))
            return http.exchange(sock, method, path, body=data, headers=fields)
        finally:
            sock.close()

    # -- what it said -------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """Everything it wrote, to either stream."""
        return self._log.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log's JSON lines; only those of one `opensandbox.event` where a name is given."""
        found = []
        for line in self.log.splitlines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [one for one in found if name is None or one.get("opensandbox.event") == name]

    def wait_for_log(self, text: str, seconds: float = 60.0) -> str:
        """Until the log holds `text`; the log. Raises LabError."""
        deadline = time.monotonic() + seconds
        while text not in self.log:
            if time.monotonic() > deadline:
                raise LabError(f"not in the log after {seconds:g} s: {text!r}\n{self.log}")
            time.sleep(0.01)
        return self.log


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_first(pid: int) -> bool:
    """Whether a process is the first of a PID namespace below ours (proc_pid_status(5))."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return len(numbers) > 1 and numbers[-1] == "1"
    return False


def _lives(pid: int) -> bool:
    """Whether a process still holds anything: not gone, and no thread of it but waits to be buried."""
    with contextlib.suppress(OSError):
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                if stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
                    return True
    return False


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)  # which are looked through as well
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
