"""One gateway takes the port over from another, under load: no connection refused, none reset, no answer lost."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}


class Load:
    """Clients that open a connection for every request, as fast as they are answered, and count what goes wrong."""

    def __init__(self, port: int, path: str, clients: int = 4) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        self._port = port
        self._stop = threading.Event()
        self.answered = 0
        self.problems: list[str] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 10) as sock:
                    sock.sendall(self._request)
                    answer = b""
                    while chunk := sock.recv(65536):
                        answer += chunk
            except OSError as error:
                self.problems.append(f"{type(error).__name__}: {error}")
                continue
            if answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"hello from /hello"):
                self.answered += 1
            else:
                self.problems.append(f"answer {answer[:100]!r}")

    def wait_for(self, more: int) -> None:
        """Until so many more requests were answered, or something went wrong."""
        goal = self.answered + more
        deadline = time.monotonic() + 60
        while self.answered < goal and not self.problems:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)


def again(start_gateway: Any, path: str, first: Any, workers: int, *args: str) -> Any:
    """A gateway with the same port and the same hand-over path as `first`."""
    ports = ["--port", str(first.port), "--admin-port", str(first.admin_port)]
    return start_gateway(BOX, ["--handover", path, *ports, *args], workers=workers)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 1)])
@pytest.mark.timeout(180)
def test_a_takeover_under_load_loses_nothing(
    before: int, after: int, start_gateway: Any, origin: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path], workers=before)
    load = Load(old.port, origin.path())
    load.wait_for(300)
    gateways = [old]
    for workers in (after, before):  # there and back again
        fresh = again(start_gateway, path, gateways[-1], workers)
        assert fresh.says("listening")["taken_over"] is True
        assert fresh.port == old.port
        assert gateways[-1].wait() == 0
        load.wait_for(300)
        assert len(fresh.workers) == workers
        gateways.append(fresh)
    load.end()
    assert load.problems == []
    assert load.answered >= 900
    assert gateways[1].says("another gateway serves now")


def test_streams_of_the_old_one_finish_while_the_new_one_serves(
    start_gateway: Any, origin: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path])
    connection = http.client.HTTPConnection("127.0.0.1", old.port, timeout=20)
    connection.request("GET", origin.path("/stream"))
    origin.events.put(b"one")
    response = connection.getresponse()
    assert response.read(3) == b"one"
    probe = http.client.HTTPConnection("127.0.0.1", old.admin_port, timeout=20)
    probe.request("GET", "/readyz")
    assert probe.getresponse().read() == b"ok\n"
    new = again(start_gateway, path, old, 1)
    old.says("another gateway serves now")
    deadline = time.monotonic() + 20
    while old.listens():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    probe.request("GET", "/readyz")  # a probe that has kept its connection, or that came in the very turn of leaving
    kept = probe.getresponse()
    assert (kept.status, kept.getheader("Connection")) == (200, "close")
    probe.close()
    assert new.admin("/readyz").status == 200  # and never the old one's `draining`
    for _ in range(20):
        assert new.get(origin.path()).status == 200
        assert new.admin("/readyz").status == 200
    old.signal(signal.SIGTERM)  # as whoever started it would, sooner or later: it is leaving already, in its own time
    old.says("stopping")
    assert old.process.poll() is None
    origin.events.put(b"two")
    origin.events.put(None)
    assert response.read() == b"two"
    connection.close()
    assert old.wait() == 0
    assert new.get(origin.path()).status == 200


def test_the_socket_is_its_users_alone_and_goes_with_the_last_gateway(start_gateway: Any, tmp_path: Path) -> None:
    path = tmp_path / "handover.sock"
    old = start_gateway(BOX, ["--handover", str(path)])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    new = again(start_gateway, str(path), old, 1)
    assert old.wait() == 0
    assert path.exists()
    new.signal(signal.SIGTERM)
    assert new.wait() == 0
    assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir() if "handover" in entry.name] == []


def test_a_stale_socket_is_no_hindrance(start_gateway: Any, tmp_path: Path) -> None:
    path = tmp_path / "handover.sock"
    first = start_gateway(BOX, ["--handover", str(path)])
    first.expect_code = -signal.SIGKILL
    first.signal(signal.SIGKILL)
    first.wait()
    assert path.exists()
    second = start_gateway(BOX, ["--handover", str(path)])
    assert second.says("listening")["taken_over"] is False


@pytest.mark.parametrize("fault", ["certificate", "provider"])
def test_a_successor_that_cannot_serve_leaves_the_old_one_in_peace(
    fault: str, start_gateway: Any, origin: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path])
    ports = ["--port", str(old.port), "--admin-port", str(old.admin_port), "--handover", path]
    bad = (
        ["--tls-cert", "none", "--tls-key", "none"]
        if fault == "certificate"
        else ["--provider-type", "batchsandbox", "--kubeconfig", "none"]
    )
    load = Load(old.port, origin.path())
    failed = start_gateway(BOX, [*ports, *bad], ready=False)
    failed.expect_code = 2
    assert failed.wait() == 2
    load.wait_for(100)
    load.end()
    assert load.problems == []
    fresh = again(start_gateway, path, old, 1)
    assert fresh.says("listening")["taken_over"] is True
    assert old.wait() == 0


def test_a_successor_killed_in_the_middle_leaves_the_old_one_in_peace(
    start_gateway: Any, origin: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path])
    load = Load(old.port, origin.path())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as half:
        half.connect(path)
        old.says("another gateway asks for the sockets")
        greeting, descriptors, _, _ = socket.recv_fds(half, 65536, 10)
        about = json.loads(greeting)
        assert (about["main"], about["admin"]) == (1, 1)
        while not descriptors:
            _, descriptors, _, _ = socket.recv_fds(half, 64, 10)
        # Another one asks meanwhile, and is told.
        other = start_gateway(
            BOX,
            ["--port", str(old.port), "--admin-port", str(old.admin_port), "--handover", path],
            ready=False,
        )
        other.expect_code = 2
        assert other.wait() == 2
        assert "another gateway is taking over" in other.lines[-1]
    for descriptor in descriptors:
        os.close(descriptor)
    old.says("the gateway that asked for the sockets has gone")
    load.wait_for(100)
    load.end()
    assert load.problems == []
    fresh = again(start_gateway, path, old, 1)
    assert old.wait() == 0
    assert fresh.get(origin.path()).status == 200


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: not below pytest's own, which each pytest that starts shuts again."""
    with tempfile.TemporaryDirectory(prefix="sallyport-handover-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_another_user_gets_nothing(start_gateway: Any, origin: Any, open_folder: Path) -> None:
    """Whoever holds the sockets is the gateway: the peer's uid is checked, beside the file's mode."""
    path = open_folder / "handover.sock"
    old = start_gateway(BOX, ["--handover", str(path)])
    path.chmod(0o777)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = b"?"
        try:
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(10)
                sock.connect(str(path))
                code = b"nothing" if sock.recv(100) == b"" else b"something"
        except OSError as error:
            code = f"{type(error).__name__}".encode()
        finally:
            os.write(write, code)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) in (b"nothing", b"ConnectionResetError")
    os.close(read)
    assert old.get(origin.path()).status == 200
    # The control: our own user is given them.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        assert json.loads(sock.recv(65536))["main"] == 1


def test_failures_stay_counted_over_a_takeover(start_gateway: Any, origin: Any, tmp_path: Path) -> None:
    """I6: who has used up his guesses gets no new ones by waiting for an upgrade."""
    path = str(tmp_path / "handover.sock")
    routes = {"box": {"host": "127.0.0.1", "secure_access_token": "right"}}
    old = start_gateway(routes, ["--handover", path])

    def guess(gateway: Any) -> int:
        return int(gateway.get(origin.path(), headers={"OpenSandbox-Secure-Access": "wrong"}).status)

    def until_refused(gateway: Any) -> int:
        """How many guesses were looked at before one was not."""
        looked = 0
        while guess(gateway) != 429:
            looked += 1
        return looked

    until_refused(old)
    began = time.monotonic()
    ports = ["--port", str(old.port), "--admin-port", str(old.admin_port), "--handover", path]
    new = start_gateway(routes, ports)
    assert old.wait() == 0
    # A second earns one; counters that begin anew would have let twenty more through.
    assert until_refused(new) <= time.monotonic() - began + 2


def test_a_successor_may_have_another_port(start_gateway: Any, tmp_path: Path) -> None:
    """Settings may change: another port is bound anew, and the old one ends with the old gateway."""
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path])
    other = free_port()
    new = start_gateway(BOX, ["--handover", path, "--port", str(other), "--admin-port", str(old.admin_port)])
    assert old.wait() == 0
    assert new.port == other
    assert new.get("/status.ok").status == 200
    assert new.listens()
    assert not new.listens(old.port)


def test_who_keeps_its_connection_is_told_before_it_ends(start_gateway: Any, origin: Any, tmp_path: Path) -> None:
    """A busy client's next answer says `Connection: close`; its connection isn't closed under a request on its way."""
    path = str(tmp_path / "handover.sock")
    old = start_gateway(BOX, ["--handover", path, "--head-timeout", "60s"])
    request = f"GET {origin.path()} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    def hear(sock: socket.socket) -> str | None:
        """What the next answer says of the connection."""
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert (response.status, response.read()) == (200, b"hello from /hello")
        return response.getheader("Connection")

    busy, crossing, idle = clients = [socket.create_connection(("127.0.0.1", old.port), 20) for _ in range(3)]
    for sock in clients:
        sock.sendall(request)
        assert hear(sock) is None
    # The worker hears that it is to go when one request is half there and another has just come: it stands still until
    # both are so, or this would be a race with the second that it leaves to those who say nothing.
    (worker,) = old.workers
    busy.sendall(request[:20])
    os.kill(worker, signal.SIGSTOP)
    try:
        again(start_gateway, path, old, 1)
        old.says("another gateway serves now")
        crossing.sendall(request)
    finally:
        os.kill(worker, signal.SIGCONT)
    hear(crossing)  # before it heard that, or after
    deadline = time.monotonic() + 20
    while old.listens():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    busy.sendall(request[20:])
    assert hear(busy) == "close"
    assert old.wait() == 0  # and who asks nothing more is not waited for
    assert idle.recv(1) == b""
    for sock in clients:
        sock.close()
