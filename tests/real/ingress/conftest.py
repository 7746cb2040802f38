"""The gateway as a program: started with flags, spoken to over loopback, stopped by its process id."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CHECKOUT = Path(__file__).resolve().parents[3]
WITHIN = 20.0  # seconds for anything that a machine with two busy cores may take


class Answer:
    """One answer over HTTP."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers  # names in lower case
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int,
    path: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout: float = WITHIN,
) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        data = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, data)
    finally:
        connection.close()


def family(pid: int) -> set[int]:
    """The living processes below this one."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


class Gateway:
    """One running `ingress serve`. Its log is on stderr, one JSON object a line; `lines` holds what came so far."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, descriptors: int = 0) -> None:
        limited = ["prlimit", f"--nofile={descriptors}"] if descriptors else []
        self.process = subprocess.Popen(
            [*limited, sys.executable, "-m", "ingress", "serve", *argv],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environ},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # as a service has it: no terminal's signals
        )
        self.lines: list[str] = []
        self.expect_code = 0
        self.port = 0
        self.admin_port = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    # -- what it says ----------------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        """The master."""
        return self.process.pid

    @property
    def workers(self) -> list[int]:
        """Its workers' ids."""
        return sorted(family(self.pid))

    @property
    def base(self) -> str:
        """Such as http://127.0.0.1:40123"""
        return f"http://127.0.0.1:{self.port}"

    def events(self) -> list[dict[str, Any]]:
        """What it logged."""
        with self._news:
            return [json.loads(line) for line in self.lines if line.startswith("{")]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], what: str = "a log line") -> dict[str, Any]:
        """The first event that is wanted, waited for."""
        deadline = time.monotonic() + WITHIN
        seen = 0
        while True:
            with self._news:
                fresh = self.lines[seen:]
                if not fresh:
                    ended = not self._reader.is_alive()
                    left = deadline - time.monotonic()
                    if ended or left <= 0:
                        raise AssertionError(f"{what} did not come; the gateway said:\n" + "\n".join(self.lines))
                    self._news.wait(min(left, 0.2))
                    continue
                seen += len(fresh)
            for line in fresh:
                if line.startswith("{"):
                    event = json.loads(line)
                    if wanted(event):
                        return dict(event)

    def says(self, text: str) -> dict[str, Any]:
        """The first event with this in its message, waited for."""
        return self.wait_for(lambda event: text in event["msg"], repr(text))

    def listens(self, port: int = 0) -> bool:
        """Whether one of its processes holds a listening socket of this port, 0: its main port. Another test's program
        may have the same port by now; this one's descriptors are its own."""
        wanted = f"{port or self.port:04X}"
        held: set[str] = set()
        for pid in (self.pid, *self.workers):
            try:
                folder = f"/proc/{pid}/fd"
                held.update(os.readlink(f"{folder}/{name}") for name in os.listdir(folder))
            except OSError:
                continue  # the process, or a descriptor, went meanwhile
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[1].endswith(f":{wanted}") and f"socket:[{fields[9]}]" in held:
                    return True
        return False

    # -- what it answers -------------------------------------------------------------------------------------------
    def get(self, path: str = "/", **arguments: Any) -> Answer:
        """A request to its main port; arguments of `ask`."""
        return ask(self.port, path, **arguments)

    def admin(self, path: str) -> Answer:
        """A request to its admin port."""
        return ask(self.admin_port, path)

    def wait_ready(self, *, readyz: bool = True) -> None:
        """Until it listens and says that it is ready."""
        event = self.wait_for(lambda event: event["msg"] == "listening", "'listening'")
        self.port, self.admin_port = event["port"], event["admin_port"]
        deadline = time.monotonic() + WITHIN
        while readyz and self.admin_port:
            answer = self.admin("/readyz")
            if answer.status == 200:
                return
            assert time.monotonic() < deadline, answer.body
            time.sleep(0.02)

    # -- its end ---------------------------------------------------------------------------------------------------
    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = WITHIN) -> int:
        """Its exit code, once it has left."""
        code = self.process.wait(timeout)
        self._reader.join(WITHIN)
        return code

    def stop(self) -> None:
        """End it, and hold it to having left nothing behind and failed nowhere."""
        below = family(self.pid)
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGTERM)  # a second time: at once
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            for pid in (self.pid, *below):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait(WITHIN)
            raise AssertionError("the gateway did not leave:\n" + "\n".join(self.lines)) from None
        finally:
            if self.process.stderr is not None and not self._reader.is_alive():
                self.process.stderr.close()
        text = "\n".join(self.lines)
        assert "Traceback" not in text, text
        assert code == self.expect_code, text
        left = [pid for pid in below if os.path.exists(f"/proc/{pid}") and pid in family(os.getpid())]
        assert not left, f"left behind: {left}"


class StartGateway:
    """Starts gateways for one test; they end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Gateway] = []

    def __call__(
        self,
        routes: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        *,
        workers: int = 1,
        environ: Mapping[str, str] | None = None,
        ready: bool = True,
        defaults: bool = True,
        descriptors: int = 0,
    ) -> Gateway:
        """A running gateway on loopback, with ports of the kernel's choice.

        routes: id -> entry of a routes file, followed when `write_routes` is called again. args: further flags, which
        win. ready: wait until it is. defaults: False leaves all flags to `args`.
        descriptors: how many file descriptors each of its processes may have; 0: as we may.
        """
        argv: list[str] = []
        if defaults:
            self.write_routes(routes or {})
            argv = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "any", "--workers", str(workers)]
            argv += ["--mode", "header+uri", "--allow-target", "127.0.0.0/8"]
            if "--provider-type" not in args and "--routes" not in args:
                argv += ["--routes", str(self.routes_file)]
        gateway = Gateway([*argv, *args], environ or {}, str(self.folder), descriptors)
        self.started.append(gateway)
        if ready:
            gateway.wait_ready()
        return gateway

    @property
    def routes_file(self) -> Path:
        return self.folder / "routes.json"

    def write_routes(self, routes: Mapping[str, Any]) -> None:
        """Replace the routes file by rename, as a careful operator does."""
        fresh = self.folder / "routes.json.new"
        fresh.write_text(json.dumps({"sandboxes": dict(routes)}))
        fresh.rename(self.routes_file)


class Origin:
    """An application in a sandbox: any path says hello, a POST how much it took, and /stream goes on for as long as
    the test says."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []  # path and headers (lower case) of every request
        self.events: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                origin.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                if self.path.startswith("/stream"):
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while (event := origin.events.get()) is not None:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                body = b"hello from " + self.path.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = b"took %d" % len(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # with the usual five, who meets a full queue waits for seconds

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def path(self, rest: str = "/hello") -> str:
        """The path by which the sandbox `box` is reached in uri mode."""
        return f"/box/{self.port}{rest}"

    def close(self) -> None:
        self.events.put(None)
        self._server.shutdown()
        self._thread.join(WITHIN)
        self._server.server_close()


@pytest.fixture
def origin() -> Iterator[Origin]:
    """An application on loopback; its sandbox is `{"box": {"host": "127.0.0.1"}}`."""
    running = Origin()
    yield running
    running.close()


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """`start_gateway(routes={"box": {"host": "127.0.0.1"}}, args=["--mode", "uri"])` gives a running Gateway."""
    factory = StartGateway(tmp_path)
    yield factory
    problems = []
    for gateway in reversed(factory.started):
        try:
            gateway.stop()
        except AssertionError as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)
