"""PROXY headers before requests, over real sockets and from a real haproxy: who has to send them, and who must not."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}
V1 = b"PROXY TCP4 203.0.113.9 198.51.100.1 4711 443\r\n"
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2 = V2_SIGNATURE + b"\x21\x11" + struct.pack("!H4s4sHH", 12, b"\xcb\x00\x71\x09", b"\xc6\x33\x64\x01", 4711, 443)
V2_TLV = V2_SIGNATURE + b"\x21\x11" + struct.pack("!H", 17) + V2[16:] + b"\x04\x00\x02zz"
LOCAL = V2_SIGNATURE + b"\x20\x00\x00\x00"


def request(origin: Any, path: str = "/hello") -> bytes:
    return f"GET {origin.path(path)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def exchange(port: int, *pieces: bytes, source: str = "127.0.0.1") -> bytes:
    """Send the pieces, each on its way before the next, and read until the end."""
    with socket.create_connection(("127.0.0.1", port), 10, source_address=(source, 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
                if len(pieces) > 1:
                    time.sleep(0.002)
            while chunk := sock.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


def told(origin: Any) -> str:
    """The client's address as the sandbox was told it."""
    return str(origin.seen[-1][1]["x-forwarded-for"])


@pytest.mark.parametrize("header", [V1, V2, V2_TLV], ids=["v1", "v2", "v2 with TLV"])
def test_the_client_is_whom_the_balancer_names(header: bytes, start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.1"])
    assert exchange(gateway.port, header + request(origin)).endswith(b"hello from /hello")
    assert told(origin) == "203.0.113.9"


@pytest.mark.parametrize("header", [V1, V2_TLV], ids=["v1", "v2"])
def test_octet_by_octet_it_is_read_the_same(header: bytes, start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8"])
    pieces = [bytes([octet]) for octet in header] + [request(origin)]
    assert exchange(gateway.port, *pieces).endswith(b"hello from /hello")
    assert told(origin) == "203.0.113.9"


@pytest.mark.parametrize("header", [LOCAL, b"PROXY UNKNOWN\r\n"], ids=["v2", "v1"])
def test_a_balancers_own_connection_is_its_own(header: bytes, start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8"])
    assert exchange(gateway.port, header + request(origin), source="127.0.0.3").endswith(b"hello from /hello")
    assert told(origin) == "127.0.0.3"


def test_i3_a_peer_that_is_not_trusted_names_nobody(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.2"])
    assert exchange(gateway.port, request(origin), source="127.0.0.1").endswith(b"hello from /hello")
    assert told(origin) == "127.0.0.1"
    before = len(origin.seen)
    for header in (V1, V2):
        answer = exchange(gateway.port, header + request(origin), source="127.0.0.1")
        assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert len(origin.seen) == before
    # The control: the peer on the list is believed.
    assert exchange(gateway.port, V1 + request(origin), source="127.0.0.2").endswith(b"hello from /hello")
    assert told(origin) == "203.0.113.9"


def test_without_the_flag_a_header_is_no_request(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX)
    assert exchange(gateway.port, V1 + request(origin)).startswith(b"HTTP/1.1 400 ")
    assert exchange(gateway.port, V2 + request(origin)).startswith(b"HTTP/1.1 400 ")
    assert origin.seen == []


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"PROXY TCP4 203.0.113.9 198.51.100.1 4711\r\n",
        b"PROXY TCP4 " + b"9" * 120,
        V2_SIGNATURE + b"\x31\x11" + V2[14:],
        V2_SIGNATURE + b"\x21\x11\xff\xff",
    ],
    ids=["none", "short", "long", "version", "size"],
)
def test_a_trusted_peer_without_a_good_header_is_refused_and_told(
    start: bytes, start_gateway: Any, origin: Any
) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8"])
    answer = exchange(gateway.port, start + request(origin))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Sallyport-Error: proxy_protocol\r\n" in answer
    assert gateway.says("connection refused: ")["peer"] == "127.0.0.1"
    assert origin.seen == []


def test_i7_a_header_that_never_comes_is_not_waited_for(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8", "--head-timeout", "3s"])
    silent = [socket.create_connection(("127.0.0.1", gateway.port), 10) for _ in range(5)]
    silent[0].sendall(V1[:9])
    assert exchange(gateway.port, V1 + request(origin)).endswith(b"hello from /hello")
    with pytest.raises(ConnectionResetError):  # half a header was left unread
        silent[0].recv(100)
    assert [sock.recv(100) for sock in silent[1:]] == [b""] * 4
    for sock in silent:
        sock.close()


def test_who_connects_and_leaves_is_no_error(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8"])
    for _ in range(3):
        socket.create_connection(("127.0.0.1", gateway.port), 10).close()
    assert exchange(gateway.port, V1 + request(origin)).endswith(b"hello from /hello")
    assert not any("refused" in event["msg"] for event in gateway.events())


def test_what_follows_the_header_is_left_for_the_request(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.0/8"])
    head = f"GET {origin.path('/one')} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    answer = exchange(gateway.port, V2 + head + request(origin, "/two"))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert [path for path, _ in origin.seen] == ["/one", "/two"]


# -- haproxy, whose protocol it is ---------------------------------------------------------------------------------
@pytest.fixture
def haproxy(tmp_path: Path) -> Any:
    """`haproxy(port, "send-proxy-v2 …")` gives the port of a real haproxy in front of it."""
    if not shutil.which("haproxy"):
        pytest.skip("no haproxy here (Debian: haproxy)")
    running: list[subprocess.Popen[bytes]] = []

    def start(port: int, how: str) -> int:
        front = free_port()
        config = tmp_path / "haproxy.cfg"
        config.write_text(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 10s\n timeout server 10s\n"
            f"listen front\n bind 127.0.0.1:{front}\n server gateway 127.0.0.1:{port} {how}\n"
        )
        running.append(subprocess.Popen(["haproxy", "-db", "-q", "-f", str(config)], stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", front), 1).close()
                return front
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    yield start
    for process in running:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("how", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"])
def test_a_real_haproxy_in_front(how: str, haproxy: Any, start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--proxy-protocol-from", "127.0.0.1"])
    front = haproxy(gateway.port, how)
    assert exchange(front, request(origin), source="127.0.0.77").endswith(b"hello from /hello")
    assert told(origin) == "127.0.0.77"
