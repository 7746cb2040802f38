"""HTTPS at the gateway: what it offers, that it follows its files, and what it does with a pair that won't do."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}


def trusting(authority: Any, alpn: list[str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


def get(port: int, path: str, context: ssl.SSLContext) -> tuple[bytes, str, str | None]:
    """The whole answer, the certificate's common name, and the protocol that ALPN chose."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
        about: Any = sock.getpeercert()
        name = dict(pair for (pair,) in about["subject"])["commonName"]
        return answer, name, sock.selected_alpn_protocol()


def put(pair: tuple[Path, Path], folder: Path) -> None:
    """Replace the served pair, each file by rename."""
    for source, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
        shutil.copy(source, folder / f"{name}.new")
        (folder / f"{name}.new").rename(folder / name)


def start(start_gateway: Any, folder: Path, *args: str, workers: int = 1) -> Any:
    pair = ["--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key")]
    return start_gateway(BOX, [*pair, *args], workers=workers)


def test_https_leads_to_the_sandbox_which_hears_of_it(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path)
    answer, name, _ = get(gateway.port, origin.path(), trusting(authority))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"hello from /hello")
    assert name == "one"
    assert origin.seen[-1][1]["x-forwarded-proto"] == "https"
    assert gateway.admin("/livez").status == 200  # the admin port stays plain


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), (["h2"], None), (None, None)],
)
def test_only_http_1_1_is_agreed_on(
    offered: list[str] | None, chosen: str | None, start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path)
    answer, _, agreed = get(gateway.port, origin.path(), trusting(authority, offered))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert agreed == chosen


def test_old_versions_are_refused_and_1_2_is_not(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path)
    context = trusting(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert get(gateway.port, origin.path(), context)[0].startswith(b"HTTP/1.1 200 ")
    old = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{gateway.port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert old.returncode != 0


def test_plain_http_on_the_tls_port_ends_and_others_are_served(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path, "--head-timeout", "3s")
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not sock.recv(4096).startswith(b"HTTP/")
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as sock:
        assert sock.recv(1) == b""  # I7: a handshake that never begins is not waited for
    assert get(gateway.port, origin.path(), trusting(authority))[0].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("how", ["followed", "told"])
def test_a_new_pair_is_served_without_a_restart(
    how: str, start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path, workers=2)
    context = trusting(authority)
    with (
        socket.create_connection(("127.0.0.1", gateway.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as kept,
    ):
        put(authority.issue("two"), tmp_path)
        if how == "told":
            gateway.signal(signal.SIGHUP)
        gateway.says("certificate loaded")
        deadline = time.monotonic() + 20
        while get(gateway.port, origin.path(), context)[1] != "two":
            assert time.monotonic() < deadline
        for _ in range(8):  # every worker
            while get(gateway.port, origin.path(), context)[1] != "two":
                assert time.monotonic() < deadline
        kept.sendall(f"GET {origin.path()} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert kept.recv(4096).startswith(b"HTTP/1.1 200 ")  # who was connected stays so


@pytest.mark.parametrize("broken", ["mismatch", "truncated", "missing"])
def test_a_broken_new_pair_is_told_and_the_old_one_serves_on(
    broken: str, start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path)
    certificate, key = authority.issue("two")
    if broken == "mismatch":
        shutil.copy(certificate, tmp_path / "tls.crt")
    elif broken == "truncated":
        (tmp_path / "tls.crt").write_bytes(certificate.read_bytes()[:300])
    else:
        os.unlink(tmp_path / "tls.key")
    event = gateway.says("the new certificate is not used")
    assert event["level"] == "error"
    for _ in range(3):
        assert get(gateway.port, origin.path(), trusting(authority))[1] == "one"
    put((certificate, key), tmp_path)
    gateway.says("certificate loaded")
    assert get(gateway.port, origin.path(), trusting(authority))[1] == "two"
    assert b'sallyport_ingress_reloads_total{what="certificate",result="failed"}' in gateway.admin("/metrics").body


def test_pairs_that_cannot_be_served_with_stop_the_start(authority: Any, start_gateway: Any, tmp_path: Path) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    encrypted = authority.issue("locked", key_options=("-passout", "pass:secret"))
    for certificate, key, words in (
        (one[0], other[1], "certificate and key do not belong together"),
        (*encrypted, "the key is encrypted"),
    ):
        gateway = start_gateway(BOX, ["--tls-cert", str(certificate), "--tls-key", str(key)], ready=False)
        gateway.expect_code = 2
        assert gateway.wait() == 2
        (line,) = gateway.lines
        assert line.startswith("ingress: --tls-cert: ")
        assert words in line


def test_a_session_is_resumed_by_whichever_worker(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path, workers=2)
    context = trusting(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # there the ticket comes with the handshake
    session = None
    resumed = 0
    for _ in range(12):
        with (
            socket.create_connection(("127.0.0.1", gateway.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as sock,
        ):
            resumed += bool(sock.session_reused)
            session = session or sock.session
    assert resumed == 11


def test_i7_ten_stalled_handshakes_hold_nobody_up(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path)
    stalled = [socket.create_connection(("127.0.0.1", gateway.port), 10) for _ in range(10)]
    for sock in stalled:
        sock.sendall(b"\x16\x03\x01" + struct.pack("!H", 500))
    assert get(gateway.port, origin.path(), trusting(authority))[0].startswith(b"HTTP/1.1 200 ")
    for sock in stalled:
        sock.close()


def test_i7_handshakes_that_nobody_goes_on_with_are_counted(
    start_gateway: Any, origin: Any, authority: Any, tmp_path: Path
) -> None:
    """Each would hold a descriptor that a sandbox's connection needs; behind the limit they wait in the kernel."""
    put(authority.issue("one"), tmp_path)
    gateway = start(start_gateway, tmp_path, "--connections", "20", "--head-timeout", "3")
    (worker,) = gateway.workers
    before = len(os.listdir(f"/proc/{worker}/fd"))
    silent = [socket.create_connection(("127.0.0.1", gateway.port), 10) for _ in range(200)]
    try:
        seen = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            seen = max(seen, len(os.listdir(f"/proc/{worker}/fd")) - before)
            time.sleep(0.01)
        assert 10 < seen <= 30
    finally:
        for sock in silent:
            sock.close()
    assert get(gateway.port, origin.path(), trusting(authority))[0].startswith(b"HTTP/1.1 200 ")
