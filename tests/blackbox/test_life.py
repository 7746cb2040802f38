"""Threats E11 to E13, E18 and E19, and the sidecar's life: start, stop, crash, restart, and what holds meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from lab import CONTAINER_ROOT, NOBODY, Lab, Sidecar
from lab.client import NoReply
from lab.sidecar import TOKEN_HEADER
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from lab import Internet

TEST_HOST = "198.51.100.20"
POLICY = allow("api.example.com", "198.51.100.99")


@pytest.fixture
def api(lab: Lab) -> str:
    lab.dns.a("api.example.com", "198.51.100.10")
    return "198.51.100.10"


class Knocker:
    """Tries, from inside and all the time, what must never work; `heard` is what came of it."""

    def __init__(self, lab: Lab, address: str = TEST_HOST) -> None:
        self.heard: set[str] = set()
        self.tries = 0
        self._lab, self._address = lab, address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            sock = self._lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.settimeout(0.5)
            try:
                sock.connect((self._address, 80))
                self.heard.add("connected")
            except OSError as error:
                self.heard.add(type(error).__name__)
            finally:
                sock.close()
            self.tries += 1
            time.sleep(0.001)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# -- start -----------------------------------------------------------------------------------------------------------
def test_e12_closed_from_the_first_instruction_on(lab: Lab, api: str) -> None:
    """Between the lock-down and readiness nothing leaves: from the first refusal on there is no success."""
    outcomes = [lab.connect(TEST_HOST, 80)]
    assert outcomes == ["connected"], "the control: before the guard it is open"
    deadline = time.monotonic() + 60
    with Sidecar(lab, policy=POLICY, wait=False) as sidecar:
        while True:
            outcomes.append(lab.connect(TEST_HOST, 80, timeout=0.3))
            if outcomes[-1] in REJECTED:
                try:
                    sidecar.wait_ready(0.003)
                    break
                except Exception:  # noqa: BLE001 - not ready yet
                    pass
            assert time.monotonic() < deadline, sidecar.log
    first = next(at for at, outcome in enumerate(outcomes) if outcome in REJECTED)
    assert "connected" not in outcomes[first:]


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        ({"MODE": "nonsense"}, None),
        ({"DNS_UPSTREAM": "dns.example.com"}, None),
        ({"RULES": "{"}, None),
        ({"RULES": '{"egress":[{"action":"allow","target":"a..b"}]}'}, None),
    ],
)
def test_e12_a_broken_setting_leaves_it_locked(lab: Lab, api: str, env: dict[str, str], policy: Any) -> None:
    assert lab.connect(api, 80) == "connected"
    with Sidecar(lab, env=env, wait=False) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        (line,) = sidecar.log.strip().splitlines()
        assert f"OPENSANDBOX_EGRESS_{next(iter(env))}" in line
        assert lab.connect(api, 80) in REJECTED
        assert lab.connect("2001:db8:100::10", 80) in REJECTED
        assert lab.udp(api, 5000) in (*REJECTED, "dropped")
        for server in ("203.0.113.53", "8.8.8.8"):
            with pytest.raises(NoReply):
                lab.query("api.example.com", server=server, timeout=0.5)
        assert not lab.dns.queries()


def test_e12_nft_refused_means_no_start(lab: Lab, api: str) -> None:
    """Without NET_ADMIN there is no lock-down to be had, and it says so in one line."""
    with Sidecar(lab, policy=POLICY, identity=NOBODY, wait=False, argv=()) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) != 0
        assert "Traceback" not in sidecar.log


def test_e12_the_port_is_bound_only_when_ready(lab: Lab, api: str) -> None:
    """Whoever polls hears "refused" until it is ready, and from then on 200: never silence, never another status."""
    heard: list[str] = []
    with Sidecar(lab, policy=POLICY, wait=False) as sidecar:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                answer = sidecar.api("GET", "/healthz")
                heard.append(str(answer.status))
                assert answer.body == b"ok"
                break
            except OSError as error:
                heard.append(type(error).__name__)
            time.sleep(0.001)
        assert heard[-1] == "200"
        assert set(heard[:-1]) <= {"ConnectionRefusedError"}
        assert lab.query("api.example.com").addresses == [api], "ready means that names are answered"


# -- stop ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("as_pid1", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_e12_sigterm_stops_within_a_second_and_leaves_enforcement(
    lab: Lab, api: str, as_pid1: bool, number: signal.Signals
) -> None:
    with Sidecar(lab, policy=POLICY, as_pid1=as_pid1) as sidecar:
        assert lab.query("api.example.com").addresses == [api]
        flow = lab.open(api, 8000)
        idle = [lab.open("127.0.0.1", 18080) for _ in range(5)]
        assert sidecar.terminate(8, number) == 0  # before anything of it would have timed out
        assert lab.connect(TEST_HOST, 80) in REJECTED
        assert lab.connect("2001:db8:100::20", 80) in REJECTED
        assert lab.connect(api, 80) == "connected", "what was learned goes on"
        flow.send(b"still")
        assert flow.recv(10) == b"still"
        with pytest.raises(OSError, match="refused"):
            sidecar.api("GET", "/healthz")
        for one in idle:
            one.close()


def test_e12_it_can_be_started_again_without_a_gap(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        lab.query("api.example.com")
        flow = lab.open(api, 8000)
        flow.settimeout(10)
        with Knocker(lab) as knocker:
            for how in ("terminate", "kill", "terminate"):
                getattr(sidecar, how)()
                for number in range(20):
                    flow.send(b"%04d" % number)
                    assert flow.recv(16) == b"%04d" % number
                sidecar.restart()
                for number in range(20):
                    flow.send(b"%04d" % number)
                    assert flow.recv(16) == b"%04d" % number
                assert lab.connect(api, 80) == "connected", "a learned address is back before anybody asks again"
        assert "connected" not in knocker.heard
        assert knocker.tries > 50


def test_e12_policy_and_leases_are_back_after_a_restart(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=DENY_ALL, env={"POLICY_FILE": "/var/egress/policy.json"}) as sidecar:
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        lab.query("api.example.com")
        for how in ("terminate", "kill"):
            getattr(sidecar, how)()
            sidecar.restart()
            assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
            assert lab.connect(api, 80) == "connected"
        sidecar.terminate()
        sidecar.env["OPENSANDBOX_EGRESS_POLICY_FILE"] = ""
        sidecar.restart()  # another policy: what it doesn't allow must not come back
        assert sidecar.api("GET", "/policy").json()["policy"]["egress"] == []
        assert lab.connect(api, 80) in REJECTED


def test_e12_restarted_with_a_narrower_policy_flows_are_cut(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        lab.query("api.example.com")
        flow = lab.open(api, 19)
        flow.settimeout(1.0)
        sidecar.terminate()
        sidecar.env["OPENSANDBOX_EGRESS_RULES"] = ""
        sidecar.restart()
        assert soon(lambda: ended(flow))


def ended(flow: socket.socket) -> bool:
    """Reads on until the end, an error, or a tenth of a second of silence."""
    flow.settimeout(0.2)
    try:
        for _ in range(2000):
            if not flow.recv(65536):
                return True
    except TimeoutError:
        return True
    except OSError:
        return True
    return False


# -- crash -----------------------------------------------------------------------------------------------------------
def test_e12_a_killed_worker_is_back_with_policy_and_leases(lab: Lab, api: str) -> None:
    """No file configured: the last accepted policy is kept all the same."""
    with Sidecar(lab, policy=DENY_ALL) as sidecar:
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        lab.query("api.example.com")
        flow = lab.open(api, 8000)
        for _ in range(4):
            sidecar.kill_worker()
            assert lab.query("api.example.com").addresses == [api]
            flow.send(b"ping")
            assert flow.recv(10) == b"ping"
            assert lab.connect(api, 80) == "connected"
            sidecar.wait_ready()
            assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        assert sidecar.returncode is None


def test_e12_sigkill_at_many_moments_never_opens_and_never_half_applies(lab: Lab, api: str) -> None:
    """The worker is killed at random moments of policy changes; whatever holds then is one of the two policies."""
    one, two = allow("api.example.com"), allow("api.example.com", "198.51.100.99")
    chance = random.Random(7)
    with Sidecar(lab, policy=one) as sidecar, Knocker(lab) as knocker:
        for round_ in range(10):
            if round_ == 5:  # the pause before the next worker grows; a new supervisor begins anew
                sidecar.terminate()
                sidecar.restart()
            wanted = two if round_ % 2 else one
            answered: list[int] = []

            def change(body: dict[str, Any] = wanted, answered: list[int] = answered) -> None:
                try:
                    # Who hangs up before the next worker is there has changed the policy all the same, but later.
                    answered.append(sidecar.api("POST", "/policy", body).status)
                except OSError:
                    answered.append(0)

            thread = threading.Thread(target=change)
            thread.start()
            time.sleep(chance.random() * 0.03)
            sidecar.kill_worker()
            thread.join()
            sidecar.wait_ready()
            now = sidecar.api("GET", "/policy").json()["policy"]
            assert now in (one, two)
            if answered == [200]:
                assert now == wanted, "an answered change is kept"
            expected = "connected" if now == two else "refused"
            assert lab.connect("198.51.100.99", 80) == expected
            assert lab.query("api.example.com").addresses == [api]
    assert "connected" not in knocker.heard


def test_e12_sigkill_of_the_supervisor_at_many_moments_never_opens(lab: Lab, api: str) -> None:
    chance = random.Random(11)
    with Sidecar(lab, policy=POLICY, as_pid1=True) as sidecar:
        lab.query("api.example.com")
        sidecar._wait = False
        with Knocker(lab) as knocker:
            for _ in range(8):
                assert soon(lambda: sidecar.is_there)
                sidecar.kill()
                sidecar.restart()
                time.sleep(chance.random() * 0.12)
            sidecar.wait_ready()
        assert "connected" not in knocker.heard
        assert lab.connect(api, 80) == "connected"


def test_the_worker_dies_with_its_supervisor(lab: Lab) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        worker = sidecar.worker_pid
        os.kill(sidecar.pid, signal.SIGKILL)
        assert soon(lambda: dead_process(worker))


def dead_process(pid: int) -> bool:
    """Whether it has ended, waited for or not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_pid1_reaps_strangers(lab: Lab) -> None:
    """As PID 1 it inherits orphans; they must not stay behind."""
    with Sidecar(lab, policy=POLICY, as_pid1=True) as sidecar:
        children = Path(f"/proc/{sidecar.pid}/task/{sidecar.pid}/children")
        before = children.read_text()
        code = "import os,time\nif os.fork()==0:\n time.sleep(0.2)"
        # Inside the sidecar's PID namespace, with a parent that leaves at once.
        subprocess.run(
            ["nsenter", "-t", str(sidecar.pid), "-p", "python3", "-c", code], check=True, capture_output=True
        )
        assert soon(lambda: children.read_text() == before)


def test_queries_wait_in_the_socket_while_the_worker_comes_back(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        lost = 0
        for _ in range(5):
            sidecar.kill_worker()
            lost += lab.query("api.example.com").addresses != [api]
            sidecar.wait_ready()
        assert lost == 0


# -- flows -----------------------------------------------------------------------------------------------------------
def test_e18_flows_from_before_the_guard_are_cut(lab: Lab, api: str) -> None:
    warm = "type filter hook output priority 0;\n ct state established counter"
    lab.sandbox.nft(f"table inet warm {{\n chain o {{\n {warm}\n }}\n }}")  # conntrack is on already, as in Docker
    tcp = lab.open(TEST_HOST, 19)
    udp = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect((TEST_HOST, 19))
    udp.send(b"begin")
    six = lab.open("2001:db8:100::20", 8000)
    assert udp.recv(100)
    with Sidecar(lab, policy=POLICY):
        time.sleep(1.0)
        lab.sites.forget()
        drained(udp)
        assert dead(udp)
        assert ended(tcp)
        assert dead(six)
        assert not lab.sites.arrivals("udp", TEST_HOST)
    udp.close()


def dead(sock: socket.socket, seconds: float = 0.3) -> bool:
    """Whether what is sent there is refused, or never answered."""
    sock.settimeout(seconds)
    try:
        for _ in range(3):
            sock.send(b"again")
            sock.recv(100)
    except OSError:
        return True
    return False


def drained(sock: socket.socket) -> int:
    """How many packets lay in the socket's queue; an error that waits there is taken out with them."""
    count = 0
    sock.setblocking(False)
    while True:
        try:
            if not sock.recv(65536):
                return count
            count += 1
        except BlockingIOError:
            return count
        except OSError:
            continue


@pytest.mark.parametrize("family", [4, 6])
def test_e11_rule_removed_while_connections_are_open(lab: Lab, family: int) -> None:
    """TCP and UDP, both with a peer that keeps sending, are cut within a second and stay cut; allowed ones go on."""
    gone, kept = ("198.51.100.31", "198.51.100.32") if family == 4 else ("2001:db8:31::1", "2001:db8:32::1")
    lab.dns.a("gone.example.com", gone)
    lab.dns.a("kept.example.com", kept)
    kind = "A" if family == 4 else "AAAA"
    with Sidecar(lab, policy=allow("gone.example.com", "kept.example.com")) as sidecar:
        for name in ("gone", "kept"):
            assert lab.query(f"{name}.example.com", kind).addresses
        flows = {}
        for host in (gone, kept):
            tcp = lab.open(host, 19)
            echo = lab.open(host, 8000)
            udp = lab.sandbox.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
            udp.connect((host, 19))
            udp.send(b"begin")
            udp.settimeout(10)
            assert udp.recv(100)
            assert tcp.recv(100)
            flows[host] = (tcp, echo, udp)
        assert sidecar.api("POST", "/policy", allow("kept.example.com")).status == 200
        tcp, echo, udp = flows[gone]
        drained(udp)
        time.sleep(0.2)
        assert drained(udp) == 0, "the peer's datagrams still come in"
        assert ended(tcp)
        assert dead(echo)
        assert dead(udp)
        time.sleep(1.0)  # the peer goes on and on: nothing opens it again
        assert dead(udp)
        tcp, echo, udp = flows[kept]
        assert tcp.recv(65536)
        assert udp.recv(100)
        echo.send(b"alive")
        assert echo.recv(10) == b"alive"
        for flow in flows.values():
            flow[2].close()


class Talker:
    """An echo over UDP and one over TCP, all the time; `trouble` is what did not come back."""

    def __init__(self, lab: Lab, address: str) -> None:
        self.trouble: list[str] = []
        self.sent = 0
        self._udp = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.connect((address, 5000))
        self._tcp = lab.open(address, 8000)
        for sock in (self._udp, self._tcp):
            sock.settimeout(10)  # what is lost is lost; what is only late is no trouble
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            data = b"%08d" % self.sent
            self.sent += 1
            for sock in (self._udp, self._tcp):
                try:
                    sock.send(data)
                    while (heard := sock.recv(100)) != data:
                        self.trouble.append(f"{data!r}: {heard!r}")
                except OSError as error:
                    self.trouble.append(f"{sock.type.name} {data!r}: {error!r}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._udp.close()

    def goes_on(self) -> bool:
        """Whether it talks still, twenty times more."""
        before = self.sent
        return bool(soon(lambda: self.sent > before + 20))


def test_no_packet_is_lost_across_policy_changes(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        lab.query("api.example.com")
        with Talker(lab, api) as talker:
            for number in range(20):
                extra = allow(
                    "api.example.com", f"198.51.100.{number + 100}", *(f"n{i}.example.org" for i in range(number))
                )
                assert sidecar.api("POST", "/policy", extra).status == 200
            assert talker.goes_on()
        assert not talker.trouble


@pytest.mark.parametrize("killed", [False, True])
def test_e6_a_stamp_that_was_replaced_passes_the_last_door_no_more(lab: Lab, killed: bool) -> None:
    """What it was put on before a change has a second to leave; then one stamp is all that passes."""
    with Sidecar(lab, policy=POLICY) as sidecar:
        assert soon(lambda: door(lab).count("priority set") == 1)
        for number in range(3):
            assert sidecar.api("POST", "/policy", allow(f"n{number}.example.com")).status == 200
        if killed:
            sidecar.kill_worker()
            sidecar.wait_ready()
        assert soon(lambda: door(lab).count("priority set") == 1)


@pytest.mark.parametrize("event", ["worker", "supervisor", "device", "address"])
def test_no_packet_is_lost_when_something_dies_or_comes(lab: Lab, event: str) -> None:
    """The last door stands through all of it: made anew, it would drop what passes in that moment."""
    lab.dns.a("api.example.com", "198.51.100.10", ttl=300)
    with Sidecar(lab, policy=POLICY, env={"POLICY_FILE": "/var/egress/policy.json"}, as_pid1=True) as sidecar:
        lab.query("api.example.com")
        made = door(lab).splitlines()[0]  # with its handle
        with Talker(lab, "198.51.100.10") as talker:
            for number in range(4):
                match event:
                    case "worker":
                        sidecar.kill_worker()
                        sidecar.wait_ready()
                    case "supervisor":
                        sidecar.kill()
                        sidecar.restart()
                    case "device":
                        name = f"new{number}"
                        lab.sandbox.run(["ip", "link", "add", name, "type", "veth", "peer", f"{name}p"], check=True)
                        assert soon(lambda name=name: f"{name}p" in door(lab))  # type: ignore[misc]
                    case "address":
                        address = f"10.55.{number}.1"
                        lab.sandbox.run(["ip", "address", "add", f"{address}/24", "dev", "eth0"], check=True)
                        assert soon(lambda address=address: address in door(lab))  # type: ignore[misc]
                assert talker.goes_on()
                assert soon(lambda: door(lab).count("mark set") == 1), "open for the stamp of now alone"
        assert not talker.trouble
        assert door(lab).splitlines()[0] == made


def door(lab: Lab) -> str:
    """The last door, as the kernel tells it."""
    return lab.sandbox.run(["nft", "-a", "list", "table", "netdev", "sallyport"], check=True).stdout


# -- E19, E13 --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["::", "::1", "127.0.0.2"])
def test_e19_a_taken_port_is_a_clear_error_and_closed(lab: Lab, api: str, host: str) -> None:
    """One address of it is enough: who calls there would show the token to somebody else."""
    squatter = lab.sandbox.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    squatter.bind((host, 18080))
    squatter.listen()
    with Sidecar(lab, policy=POLICY, wait=False) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        (line,) = sidecar.log.strip().splitlines()
        assert "18080" in line
        assert "OPENSANDBOX_EGRESS_HTTP_ADDR" in line
        assert lab.connect(TEST_HOST, 80) in REJECTED
    squatter.close()


def test_e19_the_sandbox_cannot_take_the_ports_afterwards(lab: Lab, api: str) -> None:
    code = """
import socket
for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        sock = socket.socket(family, socket.SOCK_STREAM)
        if option: sock.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            sock.bind((host, 18080)); sock.listen(); print("taken", family, host, option)
        except OSError: pass
        sock.close()
"""
    with Sidecar(lab, policy=POLICY):
        assert lab.python(code, identity=CONTAINER_ROOT).stdout == ""


def test_e13_idle_connections_do_not_keep_others_out(lab: Lab, api: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        idle = []
        try:
            for number in range(1000):
                sock = lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM)
                sock.settimeout(10)
                try:
                    sock.connect(("127.0.0.1", 18080))
                except OSError:
                    sock.close()
                    break
                if number % 2:
                    sock.send(b"POST /policy HTTP/1.1\r\nHost: x\r\nContent-Le")
                idle.append(sock)
            assert len(idle) > 200
            for _ in range(5):
                assert sidecar.api("GET", "/healthz").status == 200
            assert sidecar.api("POST", "/policy", ALLOW_ALL).status == 200
            assert lab.query("any.example.com").rcode in ("NOERROR", "NXDOMAIN")
        finally:
            for sock in idle:
                sock.close()


def raw(lab: Lab, data: bytes, seconds: float = 60.0) -> bytes:
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        sock.connect(("127.0.0.1", 18080))
        try:
            sock.sendall(data)
        except OSError:
            pass
        answer = b""
        try:
            while b"\r\n" not in answer:
                part = sock.recv(65536)
                if not part:
                    break
                answer += part
        except OSError:
            pass
        return answer


def test_e13_bad_requests_change_nothing(internet: Internet) -> None:
    with Place(internet, policy=POLICY) as place:
        sidecar = place.sidecar
        for token in (None, "", "wrong", "correct-horse-battery-stapl", "correct-horse-battery-staple "):
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                answer = sidecar.api(method, "/policy", [], token=token)
                if token == "correct-horse-battery-staple ":
                    continue  # white space around a field's value is not part of it
                assert answer.status == 401, (token, method)
        bodies: list[tuple[bytes, int]] = [
            (b"[" * 100_000 + b"]" * 100_000, 400),
            (b'{"egress":' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
            (b'{"defaultAction":"deny","defaultAction":"allow"}', 400),
            (b'{"egress":[{"action":"deny","action":"allow","target":"a.com"}]}', 400),
            (b'{"defaultAction":NaN}', 400),
            (b'{"egress":[{"action":"allow","target":"a.com","ports":[NaN]}]}', 400),
            (b'{"egress":[{"action":"allow","target":"a.com","ports":[Infinity]}]}', 400),
            (b'\xef\xbb\xbf{"defaultAction":"allow"}', 400),
            (b'{"defaultAction":"allow"} x', 400),
            (b'{"defaultAction":"\xff\xfe"}', 400),
            (b"\xff", 400),
            (b'"allow"', 400),
            (b"[]", 400),
            (b"1", 400),
            (b"true", 400),
            (b'{"egress":[{"action":"allow","target":"\\ud800.com"}]}', 400),
            (b'{"egress":[{"action":"allow","target":"a\\u0000b.com"}]}', 400),
            (b'{"egress":[' + b"1" * 5000 + b"]}", 400),
            (b'{"egress":' + b"9" * 5000 + b"}", 400),
        ]
        for body, status in bodies:
            for method in ("POST", "PUT"):
                answer = sidecar.api(method, "/policy", body)
                assert answer.status == status, (body[:60], answer.text[:200])
                assert answer.json()["status"] == "error"
        big = b"POST /policy HTTP/1.1\r\nHost: x\r\n" + TOKEN_HEADER.encode()
        big += b": correct-horse-battery-staple\r\nContent-Length: 10485760\r\n\r\n" + b" " * 10_485_760
        assert raw(place.lab, big).split(b" ")[1] == b"413"
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        assert "Traceback" not in sidecar.log


@pytest.fixture(scope="module", autouse=True)
def never_finished(internet: Internet) -> Iterator[Callable[[], dict[str, bytes]]]:
    """Requests that are never finished, sent when the module begins, so that nobody waits for their time to run out."""
    with Place(internet, policy=POLICY) as place:
        head = b"POST /policy HTTP/1.1\r\nHost: x\r\n"
        body = TOKEN_HEADER.encode() + b": correct-horse-battery-staple\r\nContent-Length: 100\r\n\r\n{"
        heard: dict[str, bytes] = {}

        def send(kind: str, data: bytes) -> None:
            heard[kind] = raw(place.lab, data, 40.0)

        threads = [
            threading.Thread(target=send, args=arguments) for arguments in (("head", head), ("body", head + body))
        ]
        for thread in threads:
            thread.start()

        def result() -> dict[str, bytes]:
            for thread in threads:
                thread.join()
            assert place.sidecar.api("GET", "/policy").json()["policy"] == POLICY
            return heard

        yield result
        for thread in threads:
            thread.join()


def test_e13_a_request_that_is_never_finished_is_408(never_finished: Callable[[], dict[str, bytes]]) -> None:
    heard = never_finished()
    assert heard["body"].split(b" ")[1] == b"408", heard
    assert heard["head"] == b"" or heard["head"].split(b" ")[1] == b"408", heard


def test_e13_without_a_token_changes_from_inside_are_refused(internet: Internet) -> None:
    with Place(internet, policy=POLICY, env={"TOKEN": None}) as place:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for address in ("127.0.0.1", "::1", place.lab.link.sandbox):
                for token in (None, "", "anything"):
                    answer = place.sidecar.api(method, "/policy", [], token=token, address=address)
                    assert answer.status == 401
                    assert "OPENSANDBOX_EGRESS_TOKEN" in answer.text
                    assert "socket" in answer.text
        assert place.sidecar.api("GET", "/policy", token=None).status == 200
        assert place.sidecar.api("GET", "/healthz", token=None).status == 200
        assert any("TOKEN" in event.get("msg", event.get("message", "")) for event in place.sidecar.events())


def test_e12_a_worker_that_dies_takes_nothing_along_even_after_a_restart(lab: Lab, start_sidecar: Any) -> None:
    lab.dns.a("kept.example.com", "198.51.100.201")
    sidecar = start_sidecar(policy={"egress": [{"action": "allow", "target": "kept.example.com"}]})
    assert lab.query("kept.example.com").addresses == ["198.51.100.201"]
    sidecar.terminate()
    sidecar.restart()  # the name of the lease is not known any more
    assert lab.connect("198.51.100.201", 80) == "connected"
    # Until the first life's chains are swept away it is not known which are in use, and the next worker loads anew.
    assert soon(lambda: len(loads(lab)) == 1)
    table = lab.sandbox.run(["nft", "list", "chain", "inet", "sallyport", "stamp"]).stdout
    sidecar.kill_worker()
    assert lab.query("kept.example.com").addresses == ["198.51.100.201"]
    assert lab.connect("198.51.100.201", 80) == "connected"
    assert lab.connect("198.51.100.202", 80) == "refused"
    assert lab.sandbox.run(["nft", "list", "chain", "inet", "sallyport", "stamp"]).stdout == table, "nothing was loaded"
    assert sidecar.api("DELETE", "/policy", ["kept.example.com"]).status == 200
    assert lab.connect("198.51.100.201", 80) == "refused"


def loads(lab: Lab) -> set[str]:
    """The loads that the table has chains of, by what ends their names."""
    table = lab.sandbox.run(["nft", "list", "table", "inet", "sallyport"], check=True).stdout
    return set(re.findall(r"chain \w+_([0-9a-f]{8}) \{", table))


def test_e6_a_device_that_came_while_no_worker_lived_is_behind_the_last_door(lab: Lab, start_sidecar: Any) -> None:
    sidecar = start_sidecar(policy={"egress": []})

    def doors() -> str:
        return lab.sandbox.run(["nft", "list", "table", "netdev", "sallyport"]).stdout

    stopped = sidecar.worker_pid
    os.kill(stopped, signal.SIGSTOP)  # nobody follows devices now
    lab.sandbox.ip("link", "add", "late7", "type", "veth", "peer", "name", "late8")
    assert "late7" not in doors()
    os.kill(stopped, signal.SIGKILL)
    assert soon(lambda: "late7" in doors() and "late8" in doors())
    assert lab.query("denied.example.com").rcode == "NXDOMAIN"
