"""What the command in the sandbox cannot reach. Each test has its control beside it: the same, outside or shared."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

VSOCK = 40
KEYCTL = {"x86_64": 250, "aarch64": 219}
IO_URING_SETUP = 425


@pytest.fixture(params=["/run", "/tmp", "/var/lib"])
def listener(request: pytest.FixtureRequest) -> Iterator[str]:
    """A unix socket of the host that everybody may connect to, in a folder of `request.param`."""
    with tempfile.TemporaryDirectory(prefix="sp-run-", dir=request.param) as folder:
        Path(folder).chmod(0o755)
        path = f"{folder}/service"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
            Path(path).chmod(0o777)
            sock.listen()
            yield path


@pytest.fixture
def port() -> Iterator[int]:
    """A TCP port on this machine's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_the_guard_can_neither_be_seen_nor_signalled_nor_traced(caller: Any, read_notes: Any) -> None:
    process = caller.start(
        "closed", "--offline", "--", "sh", "-c", 'read pid; exec "$@" "kill=$pid" "ptrace=$pid" "read=/proc/$pid/stat"',
        "sh", caller.python, f"{caller.project}/tests/real/run/probe.py", "listed=/proc", "kill=1", "ptrace=1",
        "read=/proc/1/environ", stdin=-1,
    )  # fmt: skip
    said = ""
    while "pid" not in read_notes(said):
        line = process.stderr.readline()
        assert line, said
        said += line
    pid = read_notes(said)["pid"]
    assert Path(f"/proc/{pid}/stat").exists()
    out, err = process.communicate(f"{pid}\n", timeout=120)
    assert process.returncode == 0, err
    import json

    found = json.loads(out)
    assert found[f"kill={pid}"] == "ESRCH"
    assert found[f"ptrace={pid}"] == "ESRCH"
    assert found[f"read=/proc/{pid}/stat"] == "ENOENT"
    assert {name for name in found["listed=/proc"] if name.isdigit()} <= {"1", "2", "3", "4"}
    assert found["kill=1"] == "done"  # allowed, and without effect: a namespace's init hears only what it handles
    assert found["ptrace=1"] == "EPERM"
    assert found["read=/proc/1/environ"] == "EACCES"


def test_a_unix_socket_of_the_host_is_not_reached(caller: Any, listener: str) -> None:
    word = f"unix={listener}"
    assert caller.outside(word) == {word: "connected"}
    found, _ = caller.probe(word)
    assert found[word] in ("ENOENT", "ECONNREFUSED")


def test_a_unix_socket_is_reached_when_it_is_shared(caller: Any, listener: str) -> None:
    word = f"unix={listener}"
    for path in (listener, os.path.dirname(listener)):
        found, _ = caller.probe(word, options=("--offline", "--share-path", path))
        assert found[word] == "connected"


def test_a_socket_in_the_working_folder_is_covered(caller: Any) -> None:
    path = f"{caller.home}/service"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        Path(path).chmod(0o777)
        sock.listen()
        assert caller.outside(f"unix={path}") == {f"unix={path}": "connected"}
        found, _ = caller.probe(f"unix={path}", f"listed={caller.home}")
        assert found == {f"unix={path}": "ECONNREFUSED", f"listed={caller.home}": ["service"]}


def test_an_abstract_unix_socket_of_the_host_is_not_reached(caller: Any) -> None:
    name = f"sp-run-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0" + name)
        sock.listen()
        assert caller.outside(f"unix=@{name}") == {f"unix=@{name}": "connected"}
        found, _ = caller.probe(f"unix=@{name}")
        assert found == {f"unix=@{name}": "ECONNREFUSED"}


def test_the_guard_has_sockets_in_both_networks(caller: Any, port: int) -> None:
    _, notes = caller.probe("environment=HOME", env={"HOST_PORT": str(port)})
    assert notes["host"] == {"host": "connected", "own": "Connection refused"}


def test_loopback_of_the_host_is_not_reached_without_any_rule(connected: Any) -> None:
    """The stand-in rejects nothing here: it is the network itself that has no way to the host's loopback."""
    lab = connected.lab
    with (
        lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as v4,
        lab.sandbox.socket(socket.AF_INET6, socket.SOCK_STREAM) as v6,
    ):
        v4.bind(("127.0.0.1", 0))
        number = v4.getsockname()[1]
        v6.bind(("::1", number))
        for sock in (v4, v6):
            sock.listen()
        assert connected.outside(f"tcp=127.0.0.1/{number}", f"tcp=::1/{number}") == {
            f"tcp=127.0.0.1/{number}": "connected",
            f"tcp=::1/{number}": "connected",
        }
        places = [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "0.0.0.0",
            "::",
            lab.link.sandbox,
            lab.link.sandbox6,
            "::ffff:127.0.0.1",
        ]
        words = [f"tcp={place}/{number}" for place in places]
        sites = ("reached=198.51.100.10/80", "reached=2001:db8:100::10/80")
        found, _ = connected.probe(*sites, *words, mode="open", options=())
    assert found.pop(sites[0]) == "connected"
    sixth = found.pop(sites[1])
    assert sixth == "connected" or connected.helper == "slirp4netns"  # which waits for a router's word first
    assert "connected" not in found.values()
    assert len(found) == len(words)


def test_the_gateway_does_not_stand_for_the_host(connected: Any) -> None:
    lab = connected.lab
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.settimeout(0.2)
        number = sock.getsockname()[1]
        connected.probe(
            f"tcp={lab.link.gateway}/{number}",
            f"tcp=10.0.2.2/{number}",
            f"tcp=10.0.2.3/{number}",
            mode="open",
            options=(),
        )
        with pytest.raises(TimeoutError):
            sock.accept()
        assert connected.outside(f"tcp=127.0.0.1/{number}") == {f"tcp=127.0.0.1/{number}": "connected"}
        sock.accept()[0].close()


def test_nothing_leaves_a_locked_sandbox(connected: Any) -> None:
    words = ("tcp=198.51.100.10/80", "tcp=2001:db8:100::10/80")
    found, _ = connected.probe(*words, mode="closed", options=())
    assert found.pop(words[0]) == "ECONNREFUSED"
    assert found.pop(words[1]) == ("ECONNREFUSED" if connected.helper == "pasta" else "ENETUNREACH")


def test_no_capability_and_no_way_back(caller: Any) -> None:
    found, _ = caller.probe("read=/proc/self/status", "raw=", "packet=")
    status = dict(line.split(":\t", 1) for line in found["read=/proc/self/status"].splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == [str(caller.uid)] * 4
    assert (found["raw="], found["packet="]) == ("EPERM", "EPERM")
    tries = ("nft list ruleset", "nft flush ruleset", "ip link set lo down")
    done = caller.run("closed", "--offline", "--", "sh", "-c", "; ".join(f"{word} || echo refused" for word in tries))
    assert done.stdout.splitlines() == ["refused"] * 3
    # In a user namespace of its own it may have every capability, and still none over the network it is in.
    inner = "grep CapEff /proc/self/status; " + "; ".join(f"{word} || echo refused" for word in tries)
    done = caller.run("closed", "--offline", "--", "unshare", "--user", "--keep-caps", "sh", "-c", inner)
    first, *rest = done.stdout.splitlines()
    assert first.split()[1] != "0" * 16
    assert rest == ["refused"] * 3


def test_what_no_namespace_contains_is_refused(caller: Any) -> None:
    keyctl = f"call={KEYCTL[platform.machine()]}"
    words = (f"family={VSOCK}", f"call={IO_URING_SETUP}", keyctl)
    assert caller.outside(words[0])[words[0]] in ("done", "EAFNOSUPPORT")
    assert caller.outside(keyctl)[keyctl] != "EPERM"
    found, _ = caller.probe(*words, f"family={int(socket.AF_INET)}", f"family={int(socket.AF_UNIX)}")
    assert list(found.values()) == ["EAFNOSUPPORT", "ENOSYS", "EPERM", "done", "done"]


def test_the_kernels_knobs_cannot_be_turned(caller: Any) -> None:
    words = ("write=/proc/sys/kernel/core_pattern", "write=/proc/sysrq-trigger", "write=/sys/kernel/mm/ksm/run")
    found, _ = caller.probe(*words, "read=/proc/sys/kernel/ostype", "listed=/dev")
    for word in words:
        assert found[word] in ("EROFS", "EACCES", "ENOENT")
        if caller.uid == 0 and Path(word.partition("=")[2]).exists():
            assert found[word] == "EROFS"
            assert caller.outside(word) == {word: "done"}
    assert found["read=/proc/sys/kernel/ostype"] == "Linux\n"
    assert not {"vda", "sda", "mem", "kmsg", "vsock", "net", "kvm"} & set(found["listed=/dev"])


def test_descriptors_of_the_caller_are_closed(caller: Any) -> None:
    read, write = os.pipe()
    try:
        found, _ = caller.probe("descriptors=", pass_fds=(read, write))
    finally:
        os.close(read)
        os.close(write)
    assert found["descriptors="] == [0, 1, 2]


def test_files_what_is_fresh_and_what_stays(caller: Any) -> None:
    Path(caller.home, "kept").write_text("here")
    os.chown(Path(caller.home, "kept"), caller.uid, caller.uid)
    beside = caller.home.parent / "beside"
    beside.mkdir()
    os.chown(beside, caller.uid, caller.uid)
    words = (f"read={caller.home}/kept", f"create={caller.home}/new", "create=/tmp/new", "create=/dev/shm/new",
             f"create={beside}/new", f"listed=/run/user/{caller.uid}", "create=/etc/new")  # fmt: skip
    found, _ = caller.probe(*words)
    assert list(found.values())[:-1] == ["here", "done", "done", "done", "ENOENT", []]
    assert found["create=/etc/new"] == ("EROFS" if caller.uid == 0 else "EACCES")
    found, _ = caller.probe(f"create={beside}/new", options=("--offline", "--share-path", str(beside)))
    assert found == {f"create={beside}/new": "done"}


def test_resolver_settings_lead_to_the_guard(caller: Any) -> None:
    found, _ = caller.probe("read=/etc/resolv.conf", "read=/etc/nsswitch.conf", "write=/etc/resolv.conf")
    assert "nameserver 127.0.0.1\n" in found["read=/etc/resolv.conf"]
    assert "\nhosts: files dns\n" in found["read=/etc/nsswitch.conf"]
    assert found["write=/etc/resolv.conf"] in ("EROFS", "EACCES")


def test_variables_that_lead_to_the_host_are_taken_out(caller: Any) -> None:
    env = {"SSH_AUTH_SOCK": "/tmp/agent", "DOCKER_HOST": "unix:///run/docker.sock", "ORDINARY": "1",
           "OPENSANDBOX_EGRESS_TOKEN": "secret"}  # fmt: skip
    words = [f"environment={name}" for name in env]
    found, _ = caller.probe(*words, env=env)
    assert list(found.values()) == [None, None, "1", None]
    found, _ = caller.probe(*words, env=env, options=("--offline", "--env", "SSH_AUTH_SOCK", "--env", "ORDINARY=2"))
    assert list(found.values()) == ["/tmp/agent", None, "2", None]
