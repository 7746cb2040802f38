"""What the running sidecar has given up: read from the kernel, and tried from inside its own worker."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egress.callfilter import MACHINES, REFUSED
from lab import CONTAINER_ROOT, ROOT, Identity, Lab, Sidecar
from lab.identity import SIDECAR
from tests.blackbox.place import REJECTED, allow, soon

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

NET_ADMIN = 1 << 12
POLICY = allow("api.example.com")
# Docker's default set and NET_ADMIN: what OpenSandbox's server gives the container, by `cap_add`.
ORDINARY = Identity(
    "root in a container with NET_ADMIN", capabilities=(*(CONTAINER_ROOT.capabilities or ()), "net_admin")
)
IDENTITIES = (ROOT, ORDINARY, SIDECAR)

# Runs `egress serve` with a worker that tries what it must not; the same was tried before the start, as the control.
PROBE = r"""
import ctypes, errno, json, os, socket, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(sys.argv[1])

def outcome(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done"

def call(number):
    def work():
        ctypes.set_errno(0)
        if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 5) == -1:
            raise OSError(ctypes.get_errno(), "")
    return work

def execute():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)

def fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

def thread():
    found = []
    runner = threading.Thread(target=lambda: found.append(1))
    runner.start()
    runner.join()
    assert found

def write(path):
    def work():
        with open(path, "x") as file:
            file.write("x")
        os.unlink(path)
    return work

def folder():
    os.mkdir("/var/egress/probe")
    os.rmdir("/var/egress/probe")

def opens(*arguments):
    return lambda: socket.socket(*arguments).close()

def mark():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 77)

def tried():
    found = {name: outcome(call(number)) for name, number in numbers.items()}
    found.update({
        "a program": outcome(execute), "a process": outcome(fork), "a thread": outcome(thread),
        "a file in the policy's folder": outcome(write("/var/egress/probe")),
        "a file elsewhere": outcome(write("/run/probe")),
        "a folder in the policy's folder": outcome(folder),
        "a raw socket": outcome(opens(socket.AF_INET, socket.SOCK_RAW, 1)),
        "a packet socket": outcome(opens(socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "a netlink socket": outcome(opens(socket.AF_NETLINK, socket.SOCK_RAW, 12)),
        "a mark": outcome(mark),
        "a stranger's signal": outcome(lambda: os.kill(int(os.environ["STRANGER"]), 0)),
    })
    return found

from egress import app, privileges, supervisor

before = tried()

def work(plan):
    privileges.take_up()
    print(json.dumps({"probe": [before, tried()]}), flush=True)
    threading.Event().wait()

app.work = work
sys.exit(supervisor.serve(os.environ))
"""
TRIED = (
    "ptrace", "process_vm_readv", "kcmp", "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "bpf",
    "perf_event_open", "userfaultfd", "keyctl", "add_key", "io_uring_setup", "finit_module", "open_by_handle_at",
    "pidfd_getfd", "sethostname", "mknodat", "open_tree",
)  # fmt: skip


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cut(flow: socket.socket) -> bool:
    try:
        flow.send(b"x")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity.name)
def test_what_supervisor_and_worker_keep(lab: Lab, identity: Identity) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    file = {"POLICY_FILE": "/var/egress/policy.json"}
    with Sidecar(lab, policy=POLICY, identity=identity, env=file) as sidecar:
        supervisor, worker = status(sidecar.pid), status(sidecar.worker_pid)
        for found, effective in ((supervisor, 0), (worker, NET_ADMIN)):
            assert int(found["CapPrm"], 16) == NET_ADMIN
            assert int(found["CapEff"], 16) == effective
            assert int(found["CapInh"], 16) == int(found["CapAmb"], 16) == 0
            # Without CAP_SETPCAP nothing can be taken out of the bounding set, and nothing else is in it.
            assert int(found["CapBnd"], 16) == (NET_ADMIN if identity is SIDECAR else 0)
            assert found["NoNewPrivs"] == "1"
            assert found["Seccomp"] == "2"
        assert int(worker["Seccomp_filters"]) == int(supervisor["Seccomp_filters"]) + 1
        # And it works: names, packets, flows, the file, the next worker.
        assert lab.query("api.example.com").addresses == ["198.51.100.10"]
        flow = lab.open("198.51.100.10", 8000)
        assert sidecar.api("POST", "/policy", allow("other.example.com")).status == 200
        assert lab.connect("198.51.100.10", 80) in REJECTED
        assert soon(lambda: cut(flow))
        assert "other" in (sidecar.state / "policy.json").read_text()
        sidecar.kill_worker()
        sidecar.wait_ready()
        assert status(sidecar.worker_pid)["CapEff"] == worker["CapEff"]
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert lab.query("api.example.com").addresses == ["198.51.100.10"]
        assert "not filtered" not in sidecar.log
        assert "not closed off" not in sidecar.log


@pytest.fixture
def stranger(lab: Lab) -> Iterator[int]:
    process = lab.sandbox.popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_worker_that_was_taken_over_can_do_little(lab: Lab, stranger: int) -> None:
    """The control is the same program before the start: there all of it is done, or refused for another reason."""
    machine = MACHINES[os.uname().machine]
    numbers = json.dumps({name: REFUSED[name][machine.column] for name in TRIED})
    argv = (sys.executable, "-c", PROBE, numbers)
    env = {"POLICY_FILE": "/var/egress/policy.json"}
    sidecar = Sidecar(lab, policy=POLICY, identity=ROOT, argv=argv, env=env, wait=False)
    sidecar.env.update(STRANGER=str(stranger), PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    with sidecar:
        assert soon(lambda: any("probe" in event for event in sidecar.events())), sidecar.log
        (found,) = [event["probe"] for event in sidecar.events() if "probe" in event]
    before: dict[str, str] = found[0]
    after: dict[str, str] = found[1]
    kept = {"a thread", "a file in the policy's folder", "a netlink socket", "a mark"}
    assert {name for name, said in after.items() if said == "done"} == kept, after
    assert {before[name] for name in (*kept, "a program", "a process", "a file elsewhere", "a raw socket")} == {"done"}
    assert {before[name] for name in ("a packet socket", "a stranger's signal")} == {"done"}
    assert before["a folder in the policy's folder"] == "done"
    assert after["a program"] == after["a process"] == after["a raw socket"] == "EPERM"
    assert after["a packet socket"] == "EAFNOSUPPORT"
    assert {after[name] for name in TRIED} == {"EPERM"}
    proved = [name for name in TRIED if before[name] != "EPERM"]
    assert len(proved) > len(TRIED) // 2, before


def test_its_memory_and_environment_are_nobodys_to_read(lab: Lab) -> None:
    """By a process with the same user and the same capabilities: only that it is undumpable stands between them."""
    code = "import sys\nfor name in ('environ', 'mem'):\n open(f'/proc/{sys.argv[1]}/{name}', 'rb').close()"
    control = lab.sandbox.popen(["sleep", "600"], identity=SIDECAR)
    assert soon(lambda: status(control.pid)["Name"] == "sleep"), "before that it is somebody else, with more rights"
    with Sidecar(lab, policy=POLICY) as sidecar:
        thief = lab.python(code, str(control.pid), identity=SIDECAR)
        assert thief.returncode == 0, thief.stderr
        for pid in (sidecar.pid, sidecar.worker_pid):
            for attacker in (SIDECAR, CONTAINER_ROOT):
                thief = lab.python(code, str(pid), identity=attacker)
                assert "PermissionError" in thief.stderr


def test_a_folder_of_somebody_elses_is_written_as_ever(lab: Lab) -> None:
    """As a host's folder mounted into the container is: root may write there by CAP_DAC_OVERRIDE, so that stays."""
    file = {"POLICY_FILE": "/var/egress/policy/policy.json"}
    sidecar = Sidecar(lab, policy=POLICY, identity=ORDINARY, env=file)
    folder = sidecar.state / "policy"
    folder.mkdir(mode=0o755)
    os.chown(folder, 1000, 1000)
    with sidecar:
        assert int(status(sidecar.worker_pid)["CapPrm"], 16) == NET_ADMIN | 1 << 1
        answer: Any = sidecar.api("POST", "/policy", allow("other.example.com"))
        assert answer.status == 200, answer.text
        assert "other" in (folder / "policy.json").read_text()
