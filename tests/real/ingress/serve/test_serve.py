"""`ingress serve` as an operator meets it: what it says at start, what it refuses, and how it leaves."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKOUT = Path(__file__).resolve().parents[4]
BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}


def run(*argv: str, folder: Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`ingress` until it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ingress", *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=20,
    )


def nobody_listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


# -- the start -----------------------------------------------------------------------------------------------------
def test_with_no_arguments_it_says_where_it_looks_and_what_it_found(start_gateway: Any, tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text("sandboxes: {box: {host: 127.0.0.1}, other: {host: 10.0.0.7}}\n")
    ports = {"SALLYPORT_INGRESS_PORT": str(free_port()), "SALLYPORT_INGRESS_ADMIN_PORT": str(free_port())}
    gateway = start_gateway(defaults=False, environ=ports)
    event = gateway.says("found 2 sandboxes")
    assert event["provider"] == "static"
    assert "routes.yaml" in event["source"]
    listening = gateway.says("listening")
    assert (listening["mode"], listening["provider"]) == ("header", "static")
    assert listening["address"] == f"*:{gateway.port}"
    assert listening["workers"] == len(gateway.workers)


def test_both_families_are_served_by_default(start_gateway: Any, origin: Any) -> None:
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    gateway = start_gateway(BOX, ["--host", "*"])
    for address in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(address, gateway.port, timeout=10)
        connection.request("GET", origin.path())
        assert connection.getresponse().read() == b"hello from /hello"
        connection.close()


def test_all_three_ways_lead_to_the_sandbox(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX)
    route = f"box-{origin.port}"
    assert gateway.get(origin.path("/a")).body == b"hello from /a"
    assert gateway.get("/b", headers={"OpenSandbox-Ingress-To": route}).body == b"hello from /b"
    assert gateway.get("/c", headers={"Host": f"{route}.any.example"}).body == b"hello from /c"
    assert gateway.get("/box").status == 400
    assert gateway.get("/nobody/80/").status == 404


def test_health_on_both_ports(start_gateway: Any) -> None:
    gateway = start_gateway()
    assert (gateway.get("/status.ok").status, gateway.get("/status.ok").body) == (200, b"OK")
    assert {
        path: gateway.admin(path).status for path in ("/status.ok", "/livez", "/readyz", "/metrics")
    } == dict.fromkeys(("/status.ok", "/livez", "/readyz", "/metrics"), 200)
    assert b'sallyport_ingress_build_info{version="' in gateway.admin("/metrics").body


def test_admin_only_keeps_health_off_the_main_port(start_gateway: Any) -> None:
    gateway = start_gateway(args=["--admin-only"])
    assert gateway.get("/status.ok").status != 200
    assert gateway.admin("/status.ok").status == 200


def test_without_an_admin_port_there_is_none(start_gateway: Any) -> None:
    gateway = start_gateway(args=["--admin-port", "0"])
    assert gateway.admin_port == 0
    assert gateway.get("/status.ok").status == 200


def test_healthcheck_finds_the_gateway_by_the_same_variables(start_gateway: Any, tmp_path: Path) -> None:
    gateway = start_gateway()
    ports = {"SALLYPORT_INGRESS_HOST": "127.0.0.1", "SALLYPORT_INGRESS_ADMIN_PORT": str(gateway.admin_port)}
    assert run("healthcheck", folder=tmp_path, environ=ports).returncode == 0
    main = run("healthcheck", "--admin-port=0", "--host=127.0.0.1", f"--port={gateway.port}", folder=tmp_path)
    assert main.returncode == 0
    ports["SALLYPORT_INGRESS_ADMIN_PORT"] = str(free_port())
    dead = run("healthcheck", folder=tmp_path, environ=ports)
    assert (dead.returncode, len(dead.stderr.splitlines())) == (1, 1)


# -- what it refuses -----------------------------------------------------------------------------------------------
def _keys_file(text: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "keys").write_text(text)
        return ["--secure-access-keys-file", "keys"]

    return write


def _pair(certificate: str, key: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "cert").write_text(certificate)
        (folder / "key").write_text(key)
        return ["--tls-cert", "cert", "--tls-key", "key"]

    return write


BAD: dict[str, tuple[list[str] | Callable[[Path], list[str]], str]] = {
    "unknown flag": (["--prot", "1"], "--prot: there is no such flag; did you mean --port?"),
    "port": (["--port", "http"], "--port: 'http' is not a whole number"),
    "mode": (["--mode", "path"], "--mode: 'path' is not known"),
    "provider": (["--provider-type", "nomad"], "--provider-type: 'nomad' is not known"),
    "network": (["--allow-target", "10.0.0.0/99"], "--allow-target: '10.0.0.0/99'"),
    "argument": (["routes.yaml"], "routes.yaml: not expected here"),
    "keys": (["--secure-access-keys", "a=!"], "--secure-access-keys: "),
    "keys without an id": (["--secure-access-keys", "QUJD"], "--secure-access-keys: "),
    "keys file missing": (["--secure-access-keys-file", "none"], "--secure-access-keys-file: none: no such file"),
    "keys file broken": (_keys_file("a"), "--secure-access-keys-file: keys: "),
    "keys file empty": (_keys_file("# nothing\n"), "--secure-access-keys-file: keys: "),
    "certificate missing": (["--tls-cert", "c", "--tls-key", "k"], "--tls-cert: c: no such file"),
    "no certificate": (_pair("x", "y"), "--tls-cert: cert holds no certificate in PEM"),
    "no key": (_pair("-----BEGIN CERTIFICATE-----\n", "y"), "--tls-cert: key holds no private key"),
    "handover's folder": (["--handover", "/nowhere/at/all.sock"], "--handover: /nowhere/at/all.sock: "),
    "router token": (["--mode", "agent-sandbox"], "ROUTER_AUTH_TOKEN: is not set"),
    "address of another machine": (["--host", "192.0.2.1"], "--port: cannot listen on 192.0.2.1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line_exit_2_and_nothing_listens(name: str, tmp_path: Path) -> None:
    argv, words = BAD[name]
    port, admin = free_port(), free_port()
    done = run(
        "serve", "--workers=1", *(argv if isinstance(argv, list) else argv(tmp_path)),
        folder=tmp_path,
        environ={"SALLYPORT_INGRESS_PORT": str(port), "SALLYPORT_INGRESS_ADMIN_PORT": str(admin)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ingress: {words}")
    assert nobody_listens(port)
    assert nobody_listens(admin)


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_port_that_somebody_has_is_told(which: str, tmp_path: Path, start_gateway: Any) -> None:
    first = start_gateway()
    taken = first.port if which == "--port" else first.admin_port
    other = "--admin-port" if which == "--port" else "--port"
    done = run("serve", "--host=127.0.0.1", which, str(taken), other, str(free_port()), folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ingress: {which}: cannot listen on 127.0.0.1, port {taken}: address already in use; ")
    assert first.get("/status.ok").status == 200


def test_the_commands_have_help_and_a_flag_alone_means_serve(tmp_path: Path) -> None:
    for argv in (["--help"], ["serve", "--help"], ["serve", "-h"], ["healthcheck", "--help"]):
        done = run(*argv, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: ingress")
    assert run(folder=tmp_path).returncode == 2
    assert run("dance", folder=tmp_path).returncode == 2
    assert "ingress: --port: " in run("-port", "x", folder=tmp_path).stderr
    assert run("--version", folder=tmp_path).stdout.startswith("sallyport ")


# -- the end -------------------------------------------------------------------------------------------------------
def streaming(gateway: Any, origin: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """An open stream through the gateway, one event in."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    connection.request("GET", origin.path("/stream"))
    origin.events.put(b"one")
    response = connection.getresponse()
    assert response.read(3) == b"one"
    return connection, response


def test_sigterm_readiness_goes_first_streams_finish_exit_0(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX)
    connection, response = streaming(gateway, origin)
    gateway.signal(signal.SIGTERM)
    gateway.says("stopping")
    deadline = time.monotonic() + 20
    while gateway.admin("/readyz").status != 503:
        assert time.monotonic() < deadline
    assert gateway.admin("/readyz").body == b"draining\n"
    assert gateway.admin("/livez").status == 200
    while gateway.listens():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    origin.events.put(b"two")
    assert response.read(3) == b"two"
    origin.events.put(None)
    assert response.read() == b""
    connection.close()
    assert gateway.wait() == 0


def test_drain_delay_takes_connections_while_readiness_is_gone(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--drain-delay", "30s"])
    gateway.signal(signal.SIGTERM)
    gateway.says("stopping")
    deadline = time.monotonic() + 20
    while gateway.admin("/readyz").status != 503:
        assert time.monotonic() < deadline
    assert gateway.get(origin.path()).status == 200
    gateway.signal(signal.SIGTERM)  # a second time: at once
    assert gateway.wait() == 0


def test_after_the_drain_delay_it_ends(start_gateway: Any) -> None:
    gateway = start_gateway(BOX, ["--drain-delay", "1s"])
    begun = time.monotonic()
    gateway.signal(signal.SIGTERM)
    assert gateway.wait() == 0
    assert time.monotonic() - begun > 0.9


def test_drain_ends_a_stream_that_does_not(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--drain", "500ms"])
    connection, response = streaming(gateway, origin)
    gateway.signal(signal.SIGTERM)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    connection.close()
    assert gateway.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once(second: signal.Signals, start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--drain", "1h"])
    connection, _ = streaming(gateway, origin)
    gateway.signal(signal.SIGTERM)
    gateway.says("stopping")
    gateway.signal(second)
    assert gateway.wait() == 0
    connection.close()


def test_sigterm_during_the_start_is_heard(start_gateway: Any) -> None:
    for pause in (0.02, 0.1, 0.2, 0.3):
        gateway = start_gateway(BOX, ready=False)
        time.sleep(pause)  # somewhere in its start; before Python itself can hear it, it dies as any process does
        gateway.signal(signal.SIGTERM)
        gateway.expect_code = gateway.wait()
        assert gateway.expect_code in (0, -signal.SIGTERM)


def test_as_long_as_the_provider_has_not_answered_a_404_would_be_a_guess(start_gateway: Any, tmp_path: Path) -> None:
    docker = ["--provider-type", "docker", "--docker-host", f"unix://{tmp_path}/none.sock"]
    gateway = start_gateway(args=docker, ready=False)
    gateway.wait_ready(readyz=False)
    answer = gateway.admin("/readyz")
    assert (answer.status, answer.body[:9]) == (503, b"starting:")
    answer = gateway.get("/box/80/")
    assert (answer.status, answer.json()["error"]["code"]) == (503, "starting")
    assert gateway.get("/status.ok").status == 200
    assert gateway.admin("/livez").status == 200


def test_i7_with_few_descriptors_who_is_too_many_is_told_so(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, descriptors=300)
    assert "raise ulimit -n" in gateway.says("--connections is 22 ")["msg"]
    idle = [socket.create_connection(("127.0.0.1", gateway.port), 10) for _ in range(22)]
    time.sleep(0.05)
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as sock:
        answer = b""
        while chunk := sock.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Sallyport-Error: connections\r\n" in answer
    for sock in idle:
        sock.sendall(f"GET {origin.path()} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.close()


# -- reloading -----------------------------------------------------------------------------------------------------
def test_keys_are_rotated_without_a_restart(start_gateway: Any, origin: Any, tmp_path: Path) -> None:
    from ingress.admission.access import KeyRing

    old, new = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))
    keys = tmp_path / "keys"
    keys.write_text(f"a={old}\n")
    routes = {"box": {"host": "127.0.0.1", "secure_access_token": "t"}}
    gateway = start_gateway(routes, ["--secure-access-keys-file", str(keys), "--mode", "uri"], workers=2)
    expires = int(time.time()) + 3600

    def signed(text: str, key_id: str) -> str:
        signature = KeyRing.parse(text).sign(key_id, "box", origin.port, expires)
        return f"/box/{origin.port}/{_base36(expires)}/{signature}/hello"

    assert gateway.get(signed(f"a={old}", "a")).status == 200
    assert gateway.get(signed(f"b={new}", "b")).status == 401
    keys.write_text(f"a={old},b={new}\n")
    gateway.signal(signal.SIGHUP)
    gateway.says("keys loaded: a, b")
    deadline = time.monotonic() + 20  # one worker says it, the other may be a moment behind
    while gateway.get(signed(f"b={new}", "b")).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # too many guesses, and who asks is put off
    assert gateway.get(signed(f"a={old}", "a")).status == 200
    keys.write_text("broken")  # without a signal: the file is followed
    assert "go on" in gateway.says("the new keys are not used")["msg"]
    assert gateway.get(signed(f"b={new}", "b")).status == 200


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return digits


def test_the_access_log(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(BOX, ["--access-log"])
    assert gateway.get(origin.path("/hello?secret=1")).status == 200
    event = gateway.says("request")
    assert (event["status"], event["method"], event["sandbox"], event["port"]) == (200, "GET", "box", origin.port)
    assert "secret" not in json.dumps(event)
