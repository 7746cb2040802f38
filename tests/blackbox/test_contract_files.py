"""The wire contract's files: the policy file and the operator's rule files, at the running sidecar."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab import ROOT, Lab, Sidecar
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = {"POLICY_FILE": "/var/egress/policy/policy.json"}
POLICY = allow("api.example.com")


def prepared(lab: Lab, content: str | None, **more: Any) -> tuple[Sidecar, Path]:
    """A sidecar that is not started yet, and its policy file."""
    sidecar = Sidecar(lab, env={**FILE, **more.pop("env", {})}, wait=False, **more)
    path = sidecar.state / "policy" / "policy.json"
    path.parent.mkdir()
    if content is not None:
        path.write_text(content)
    return sidecar, path


def put(path: Path, text: str) -> None:
    """The whole of it at once: written in its place, it is empty for as long as this process stands still there."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.rename(path)


def health(sidecar: Sidecar) -> tuple[int, str]:
    try:
        answer = sidecar.api("GET", "/healthz", token=None)
    except OSError:
        return 0, ""
    return answer.status, answer.text


def test_a_valid_file_wins_a_missing_one_leaves_it_to_the_variable(lab: Lab) -> None:
    sidecar, path = prepared(lab, json.dumps(POLICY), policy=allow("variable.example.com"))
    with sidecar:
        sidecar.wait_ready()
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        sidecar.terminate()
        path.unlink()
        sidecar.restart()
        sidecar.wait_ready()
        assert sidecar.api("GET", "/policy").json()["policy"] == allow("variable.example.com")


@pytest.mark.parametrize("name", ["policy.yaml", "policy.yml", "policy"])
def test_yaml(lab: Lab, name: str) -> None:
    text = "# mine\ndefaultAction: deny\negress:\n  - {action: allow, target: api.example.com}\n"
    sidecar, path = prepared(lab, None, env={"POLICY_FILE": f"/var/egress/policy/{name}"})
    path.with_name(name).write_text(text)
    with sidecar:
        sidecar.wait_ready()
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        assert sidecar.api("PATCH", "/policy", [{"action": "deny", "target": "x.example.com"}]).status == 200
        accepted = sidecar.api("GET", "/policy").json()["policy"]
        sidecar.terminate()
        sidecar.restart()
        sidecar.wait_ready()
        assert sidecar.api("GET", "/policy").json()["policy"] == accepted


def test_every_accepted_change_is_persisted(lab: Lab) -> None:
    sidecar, path = prepared(lab, None)
    with sidecar:
        sidecar.wait_ready()
        steps: list[tuple[str, Any, Any]] = [
            ("POST", POLICY, POLICY),
            ("PATCH", [{"action": "deny", "target": "x.example.com"}], None),
            ("DELETE", ["x.example.com"], POLICY),
            ("PUT", ALLOW_ALL, ALLOW_ALL),
            ("POST", "", DENY_ALL),
        ]
        for method, body, expected in steps:
            assert sidecar.api(method, "/policy", body).status == 200
            now = sidecar.api("GET", "/policy").json()["policy"]
            assert json.loads(path.read_text()) == now
            assert expected in (None, now)
        before = path.read_bytes()
        assert sidecar.api("POST", "/policy", "{").status == 400
        assert path.read_bytes() == before
        assert [entry.name for entry in path.parent.iterdir()] == ["policy.json"]


def test_a_broken_file_locks_down_and_says_why_until_it_is_mended(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    sidecar, path = prepared(lab, '{"defaultAction": "allow"', policy=ALLOW_ALL)
    with sidecar:
        assert soon(lambda: health(sidecar)[0]) == 503
        assert "policy" in health(sidecar)[1]
        assert sidecar.returncode is None
        assert lab.connect("198.51.100.10", 80) in REJECTED
        assert not lab.dns.queries("api.example.com")
        assert sidecar.api("POST", "/policy", ALLOW_ALL).status == 503
        assert lab.connect("198.51.100.10", 80) in REJECTED
        assert path.read_text() == '{"defaultAction": "allow"'
        put(path, "still: [broken")
        time.sleep(0.8)
        assert health(sidecar)[0] == 503
        put(path, json.dumps(POLICY))
        assert soon(lambda: health(sidecar)[0] == 200), health(sidecar)
        assert lab.fetch("api.example.com").ok
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY


def test_a_file_that_is_being_mended_is_read_when_it_keeps_still(lab: Lab) -> None:
    """Written in its place it is empty for a moment, which is a policy too: nobody would read the one that follows."""
    lab.dns.a("api.example.com", "198.51.100.10")
    for _ in range(10):
        sidecar, path = prepared(lab, "{", policy=ALLOW_ALL)
        with sidecar:
            assert soon(lambda sidecar=sidecar: health(sidecar)[0]) == 503  # type: ignore[misc]
            longest = flickering(path)
            before = health(sidecar)[0]
            put(path, json.dumps(POLICY))
            if longest < 0.06:  # else this machine kept it still, and empty
                assert before == 503
                sidecar.wait_ready()
                assert lab.fetch("api.example.com").ok
                return
    pytest.skip("this machine stands still too often")


def flickering(path: Path) -> float:
    """Empty and broken by turns; for how many seconds it stayed empty at most."""
    longest, end = 0.0, time.monotonic() + 2.2
    while time.monotonic() < end:
        begun = time.monotonic()
        path.write_text("")
        time.sleep(0.02)
        path.write_text("{")
        longest = max(longest, time.monotonic() - begun)
        time.sleep(0.01)
    return longest


def test_a_file_broken_between_two_lives_closes_what_the_first_had_open(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    sidecar, path = prepared(lab, json.dumps(POLICY), policy=ALLOW_ALL)
    with sidecar:
        sidecar.wait_ready()
        assert lab.fetch("api.example.com").ok
        sidecar.terminate()
        path.write_text("{")
        sidecar.restart()
        assert soon(lambda: health(sidecar)[0]) == 503
        assert lab.connect("198.51.100.10", 80) in REJECTED
        put(path, json.dumps(POLICY))
        assert soon(lambda: health(sidecar)[0] == 200)
        assert lab.fetch("api.example.com").ok


def test_an_unreadable_file_locks_down(lab: Lab) -> None:
    for spoil in ("directory", "device", "loop", "huge", "binary"):
        sidecar, path = prepared(lab, None, policy=ALLOW_ALL)
        if spoil == "directory":
            path.mkdir()
        elif spoil == "device":
            os.mkfifo(path)
        elif spoil == "loop":
            path.symlink_to(path)
        elif spoil == "huge":
            path.write_text('{"egress": [' + " " * 40_000_000)
        else:
            path.write_bytes(b"\xff\xfe\0\1")
        with sidecar:
            answered = soon(lambda sidecar=sidecar: health(sidecar)[0] or sidecar.returncode)  # type: ignore[misc]
            assert answered in (503, 2), (spoil, answered, sidecar.log)
            assert lab.connect("198.51.100.10", 80) in REJECTED, spoil
        lab.unguard()


def test_a_folder_that_cannot_be_written_is_said_at_start(lab: Lab) -> None:
    sidecar, _ = prepared(lab, json.dumps(POLICY))
    sidecar.env["OPENSANDBOX_EGRESS_POLICY_FILE"] = "/proc/policy.json"
    with sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        assert "OPENSANDBOX_EGRESS_POLICY_FILE" in sidecar.log
        assert lab.connect("198.51.100.10", 80) in REJECTED


def mounted(lab: Lab, command: str, **arguments: Any) -> Sidecar:
    """A sidecar with one more mount of its own, which `command` makes."""
    serve = str(Path(sys.prefix, "bin", "egress"))
    argv = ("/bin/sh", "-c", f"mkdir -p /var/egress/policy && {command} && exec {serve} serve")
    return Sidecar(lab, env=FILE, identity=ROOT, argv=argv, wait=False, **arguments)


def test_a_file_that_is_a_mount_point_is_said_at_start(lab: Lab) -> None:
    bind = "cd /var/egress && echo {} >x && echo {} >policy/policy.json && mount -B x policy/policy.json"
    with mounted(lab, bind) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        assert "OPENSANDBOX_EGRESS_POLICY_FILE" in sidecar.log
        assert lab.connect("198.51.100.10", 80) in REJECTED


def test_a_full_disk_is_500_and_changes_nothing_anywhere(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    with mounted(lab, "mount -t tmpfs -o size=64k none /var/egress/policy", policy=POLICY) as sidecar:
        sidecar.wait_ready()
        folder = Path("/proc", str(sidecar.pid), "root", "var/egress/policy")
        path, filler = folder / "policy.json", folder / "filler"
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert lab.query("api.example.com").addresses
        before = path.read_bytes()
        with filler.open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)
        flow = lab.open("198.51.100.10", 8000)
        big = allow("198.51.100.20", *(f"a-rather-long-name-number-{n}.example.org" for n in range(500)))
        for method, body in (("POST", big), ("PATCH", big["egress"])):
            answer = sidecar.api(method, "/policy", body)
            assert answer.status == 500, answer.text
            assert answer.json()["status"] == "error"
        assert path.read_bytes() == before
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        assert lab.connect("198.51.100.20", 80) in REJECTED
        assert lab.connect("198.51.100.10", 80) == "connected"
        assert lab.query("api.example.com").addresses
        flow.send(b"x")
        assert flow.recv(1) == b"x"
        sidecar.kill_worker()
        sidecar.wait_ready()
        assert sidecar.api("GET", "/policy").json()["policy"] == POLICY
        assert sorted(entry.name for entry in folder.iterdir()) == ["filler", "policy.json"]
        filler.unlink()
        assert sidecar.api("POST", "/policy", big).status == 200
        assert lab.connect("198.51.100.20", 80) == "connected"


def test_the_file_is_always_whole(lab: Lab) -> None:
    """Read at every moment of many changes: either the one or the other."""
    sidecar, path = prepared(lab, json.dumps(POLICY))
    with sidecar:
        sidecar.wait_ready()
        other = allow(*(f"n{n}.example.com" for n in range(300)))
        seen: list[Any] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                found = json.loads(path.read_text())
                if found not in (POLICY, other):
                    seen.append(found)

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(10):
            assert sidecar.api("POST", "/policy", other if number % 2 else POLICY).status == 200
        stop.set()
        thread.join()
        assert not seen


# -- rule files ------------------------------------------------------------------------------------------------------
def rules(sidecar: Sidecar, name: str, text: str | None) -> None:
    folder = sidecar.state / "rules"
    folder.mkdir(exist_ok=True)
    if text is None:
        (folder / name).unlink()
        return
    put(folder / name, text)


def test_rule_files_precedence_and_within_a_second(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    for number, name in enumerate(("a", "b", "c")):
        lab.dns.a(f"{name}.example.com", f"198.51.100.{50 + number}")
    sidecar = start_sidecar(policy=allow("a.example.com", "198.51.100.60"))

    def state() -> tuple[bool, ...]:
        return tuple(bool(lab.query(f"{name}.example.com").addresses) for name in ("a", "b", "c"))

    assert state() == (True, False, False)
    flow = lab.open("198.51.100.50", 8000)
    rules(sidecar, "allow.always", "# infrastructure\nb.example.com\n\n  c.example.com # and this\n198.51.100.61\n")
    assert soon(lambda: state() == (True, True, True))  # a second, and a busy machine's time
    assert lab.connect("198.51.100.61", 80) == "connected"
    rules(sidecar, "deny.always", "c.example.com\na.example.com\n198.51.100.60\n")
    assert soon(lambda: state() == (False, True, False))
    assert lab.connect("198.51.100.60", 80) in REJECTED
    flow.settimeout(1)

    def cut() -> bool:
        try:
            flow.send(b"x")
            flow.recv(1)
        except OSError:
            return True
        return False

    assert soon(cut)
    assert sidecar.api("GET", "/policy").json()["policy"] == allow("a.example.com", "198.51.100.60")
    assert sidecar.api("POST", "/policy", ALLOW_ALL).status == 200
    assert state() == (False, True, False)
    rules(sidecar, "deny.always", None)
    assert soon(lambda: state() == (True, True, True))
    sidecar.kill_worker()
    assert soon(lambda: state() == (True, True, True))


def test_a_broken_rule_file_keeps_the_rules_that_stand(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    lab.dns.a("a.example.com", "198.51.100.50")
    sidecar = start_sidecar(policy=ALLOW_ALL)
    rules(sidecar, "deny.always", "a.example.com\n")
    assert soon(lambda: lab.query("a.example.com").rcode == "NXDOMAIN")
    rules(sidecar, "deny.always", "a.example.com\nhttp://nonsense/\n")
    sidecar.wait_for_log("nonsense")
    assert lab.query("a.example.com").rcode == "NXDOMAIN"
    assert "deny.always:2" in sidecar.log or "line 2" in sidecar.log


def test_a_broken_rule_file_at_start_locks_down(lab: Lab) -> None:
    with Sidecar(lab, policy=ALLOW_ALL, wait=False) as sidecar:
        pass
    lab.unguard()
    sidecar = Sidecar(lab, policy=ALLOW_ALL, wait=False)
    rules(sidecar, "deny.always", "a..b\n")
    with sidecar:
        assert soon(lambda: health(sidecar)[0] or sidecar.returncode) == 503
        assert "deny.always" in health(sidecar)[1]
        assert lab.connect("198.51.100.10", 80) in REJECTED
        rules(sidecar, "deny.always", "a.b\n")
        assert soon(lambda: health(sidecar)[0] == 200)
        assert lab.connect("198.51.100.10", 80) == "connected"


def test_log_skip(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = Sidecar(lab, policy=DENY_ALL)
    rules(sidecar, "log_skip.always", "*.noise.example.com\n198.51.100.0/24\n")
    with sidecar:
        lab.query("x.noise.example.com")
        lab.connect("198.51.100.7", 80)
        lab.query("x.loud.example.com")
        lab.connect("192.0.2.7", 80)
        log = sidecar.wait_for_log("192.0.2.7")
        assert "x.loud.example.com" in log
        assert "x.noise.example.com" not in log
        assert "198.51.100.7" not in log
