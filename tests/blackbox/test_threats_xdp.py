"""E6: XDP sockets, whose frames pass no hook of the namespace. Each queue takes one, and the sidecar has it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from egress.firewall.xdp import STOCK
from lab.identity import CONTAINER_ROOT, SIDECAR, SIDECAR_WITH_RAW
from tests.blackbox.place import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Lab

PAYLOAD = b"sallyport-xdp-payload"
BUSY = os.strerror(errno.EBUSY)
SEND = """
import ctypes, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return result
fd = call(libc.socket(44, socket.SOCK_RAW, 0))
area = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
def option(number, value):
    call(libc.setsockopt(fd, 283, number, value, len(value)))
option(4, struct.pack("=QQIIII", address, 4096, 4096, 0, 0, 0))
for ring in (5, 6, 3):
    option(ring, struct.pack("=I", 1))
offsets, size = ctypes.create_string_buffer(128), ctypes.c_uint(128)
call(libc.getsockopt(fd, 283, 1, offsets, ctypes.byref(size)))
producer, _, descriptors, _ = struct.unpack_from("=12Q", offsets.raw)[4:8]  # the second ring is that for sending
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
ring = libc.mmap(None, descriptors + 16, 3, 1, fd, 0x80000000)
where = struct.pack("=HHIII", 44, 2, socket.if_nametoindex(sys.argv[1]), 0, 0)
call(libc.bind(fd, where, len(where)))
frame = bytes.fromhex(sys.argv[2])
area[: len(frame)] = frame
ctypes.memmove(ring + descriptors, struct.pack("=QII", 0, len(frame), 0), 16)
ctypes.c_uint32.from_address(ring + producer).value += 1
call(libc.sendto(fd, None, 0, 0x40, None, 0))
"""


def frame() -> bytes:
    """A datagram to an address that nobody allows, with a source that is nobody's."""
    head = bytes.fromhex("45000031000040004011000000000000")[:12]
    ip = head + socket.inet_aton("10.77.0.2") + socket.inet_aton("192.0.2.9")
    return b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x08\x00" + ip + bytes(8) + PAYLOAD


def send(lab: Lab, device: str = "eth0") -> str:
    """Send from the sandbox as the ordinary attacker; what hindered, or ""."""
    done = lab.sandbox.python(SEND, device, frame().hex(), identity=CONTAINER_ROOT)
    if "Address family not supported" in done.stderr:
        pytest.skip("this kernel has no XDP sockets")
    return done.stderr.strip()


def warnings(sidecar: Any) -> list[str]:
    return [event["msg"] for event in sidecar.events() if event["level"] == "warn" and "XDP" in event["msg"]]


def test_e6_an_xdp_socket_is_not_to_be_had(lab: Lab, start_sidecar: Any) -> None:
    with lab.capture() as wire:
        assert send(lab) == ""
        assert wire.arrived(payload=PAYLOAD)  # the control: nothing guards yet
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW, env={"REQUIRE": "raw"})
    with lab.capture() as wire:
        for device in ("eth0", "lo"):
            assert send(lab, device) == BUSY
        assert not wire.packets(0.3, payload=PAYLOAD)
    assert warnings(sidecar) == []


def test_e6_it_is_not_to_be_had_while_a_worker_is_replaced(lab: Lab, start_sidecar: Any) -> None:
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW)
    sidecar.kill_worker()
    assert send(lab) == BUSY
    sidecar.wait_ready()
    assert send(lab) == BUSY


def test_e6_a_sidecar_that_cannot_hold_the_places_says_so(lab: Lab, start_sidecar: Any) -> None:
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR)
    (warning,) = warnings(sidecar)
    assert "CAP_NET_RAW is missing" in warning
    assert "take NET_RAW from the sandbox" in warning
    sidecar.close()
    refused = start_sidecar(policy={"egress": []}, identity=SIDECAR, env={"REQUIRE": "raw"}, wait=False)
    assert refused.process.wait(60) == 2
    assert "asks for raw" in refused.log


@contextlib.contextmanager
def holding(lab: Lab, device: str) -> Iterator[None]:
    """The ordinary attacker has one on this device, and has sent by it."""
    stay = f"{SEND}\nprint('held', flush=True)\nsys.stdin.read()"
    argv = [sys.executable, "-I", "-c", stay, device, frame().hex()]
    holder = lab.sandbox.popen(argv, identity=CONTAINER_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    yield
    holder.stdin.close()
    assert holder.wait(60) == 0


def test_e6_a_place_that_somebody_has_is_told(lab: Lab, start_sidecar: Any) -> None:
    with holding(lab, "eth0"):
        sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW)
        (warning,) = warnings(sidecar)
        assert "somebody has one on eth0 already" in warning
        assert json.loads(sidecar.api("GET", "/policy").text)["policy"]["egress"] == []
    assert soon(lambda: send(lab) == BUSY), "it is taken as soon as it is given back"


# -- devices that come later -------------------------------------------------------------------------------------------
def come(lab: Lab, device: str) -> None:
    """Another network for the sandbox, as `docker network connect` lays one."""
    outer = f"{device}-{lab.link.sandbox.split('.')[2]}"
    internet = lab.internet.namespace
    internet.run(["ip", "link", "del", outer])  # that of a sandbox of long ago may still be there
    lab.sandbox.ip("link", "add", device, "type", "veth", "peer", "name", outer, "netns", internet.name)
    internet.ip("link", "set", outer, "up")
    lab.sandbox.ip("link", "set", device, "up")
    lab.sandbox.wait_running(device)


def test_e6_nor_on_a_device_that_comes_later(lab: Lab, start_sidecar: Any) -> None:
    come(lab, "late0")
    with lab.capture() as wire:
        assert send(lab, "late0") == ""
        assert wire.arrived(payload=PAYLOAD)  # the control: nothing guards yet
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW)
    assert send(lab, "late0") == BUSY
    come(lab, "late1")
    assert soon(lambda: send(lab, "late1") == BUSY)
    sidecar.kill_worker()
    assert send(lab, "late1") == BUSY, "it is the supervisor's too"
    come(lab, "late2")
    sidecar.wait_ready()
    assert soon(lambda: send(lab, "late2") == BUSY)
    lab.sandbox.ip("link", "del", "late1")
    come(lab, "late1")
    assert soon(lambda: send(lab, "late1") == BUSY), "another device of that name is another place"
    assert [send(lab, device) for device in ("eth0", "lo", "late0", "late2")] == [BUSY] * 4


@pytest.mark.parametrize("require", ["", "raw"])
def test_e6_who_was_faster_on_a_device_that_comes_later_is_told_or_stopped(
    lab: Lab, start_sidecar: Any, require: str
) -> None:
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW, env={"REQUIRE": require})
    os.kill(sidecar.worker_pid, signal.SIGSTOP)  # or it would be a matter of luck
    come(lab, "late0")
    with lab.capture() as wire, holding(lab, "late0"):
        assert wire.arrived(payload=PAYLOAD)  # the control: that much is at stake
        os.kill(sidecar.worker_pid, signal.SIGCONT)
        assert soon(lambda: len(warnings(sidecar)) == 1), sidecar.log
        assert "somebody has one on late0 already" in warnings(sidecar)[0]
        assert soon(lambda: up(lab, "late0") == (not require))
        if require:
            lab.sandbox.ip("link", "set", "late0", "up")
            assert soon(lambda: not up(lab, "late0")), "for as long as somebody has it"
        assert up(lab, "eth0")
    assert soon(lambda: send(lab, "late0") == BUSY), "it is taken as soon as it is given back"
    assert len(warnings(sidecar)) == 1


def up(lab: Lab, device: str) -> bool:
    return "UP" in json.loads(lab.sandbox.ip("-j", "link", "show", device))[0]["flags"]


def test_e6_the_name_guards_process_has_none_of_its_sockets(lab: Lab, start_sidecar: Any) -> None:
    """It reads what strangers write, and an unbound one sends anything on the next device."""
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW, env={"SNI": "enforce"})

    def held(pid: int) -> tuple[int, bool]:
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        return sum(link.startswith("socket:") for link in links), any("xdp-places" in link for link in links)

    assert soon(lambda: held(sidecar.relay_pid)[0] < STOCK // 2)
    assert not held(sidecar.relay_pid)[1]
    assert held(sidecar.worker_pid) > (STOCK, True), "the control"


def test_e6_more_devices_than_it_has_sockets_for_are_told(lab: Lab, start_sidecar: Any) -> None:
    sidecar = start_sidecar(policy={"egress": []}, identity=SIDECAR_WITH_RAW)
    lab.sandbox.ip_batch([f"link add a{n} up type veth peer name b{n}" for n in range(STOCK // 2 + 2)])
    lab.sandbox.ip_batch([f"link set b{n} up" for n in range(STOCK // 2 + 2)])
    assert soon(lambda: "no socket is left to hold" in " ".join(warnings(sidecar))), sidecar.log
    assert "eth0" not in " ".join(warnings(sidecar))
    assert [send(lab, device) for device in ("eth0", "lo")] == [BUSY] * 2
