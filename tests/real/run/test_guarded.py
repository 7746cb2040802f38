"""The whole of it, with the real guard: what a policy names is reached, everything else is refused and told."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.network import RESOLVER

REFUSED = "ConnectionRefusedError"
FETCH = """
import json, socket, sys
found = {}
for word in sys.argv[1:]:
    host, port = word.rsplit("/", 1)
    try:
        with socket.create_connection((host, int(port)), 20) as sock:
            sock.sendall(b"GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
            found[word] = "200" if b" 200 " in sock.recv(64) else "other"
    except socket.gaierror:
        found[word] = "no such name"
    except OSError as error:
        found[word] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture
def fetch(connected: Any) -> Any:
    """Run the real thing with `options`, fetch HOST/PORT words inside: what came of each, and the report."""
    zone = connected.lab.dns
    zone.a("api.example.com", "198.51.100.10")
    zone.a("other.example.com", "198.51.100.20")

    def run(*words: str, options: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Any]]:
        target = connected.home / "denied.json"
        target.unlink(missing_ok=True)
        done = connected.run(
            "real", *options, "--json", str(target), "--", connected.python, "-c", FETCH, *words,
            env={"OPENSANDBOX_EGRESS_DNS_UPSTREAM": RESOLVER},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), json.loads(target.read_text())

    return run


def test_an_allowed_name_is_reached_and_nothing_else(fetch: Any, connected: Any) -> None:
    words = ("api.example.com/80", "other.example.com/80", "198.51.100.20/80", "api.example.com/8080")
    found, report = fetch(*words, options=("--allow", "api.example.com:80"))
    assert found == dict(zip(words, ("200", "no such name", REFUSED, REFUSED), strict=True))
    names = {entry["name"]: entry["allow"] for entry in report["deniedNames"]}
    assert names == {"other.example.com": "--allow other.example.com"}
    packets = {(entry["address"], entry["port"]): entry["allow"] for entry in report["deniedPackets"]}
    assert packets == {
        ("198.51.100.20", 80): "--allow 198.51.100.20:80",
        ("198.51.100.10", 8080): "--allow api.example.com:8080",
    }
    assert connected.lab.dns.queries("other.example.com") == []


def test_deny_wins_over_allow(fetch: Any) -> None:
    options = ("--allow", "*.example.com", "--deny", "other.example.com")
    found, report = fetch("api.example.com/80", "other.example.com/80", options=options)
    assert found == {"api.example.com/80": "200", "other.example.com/80": "no such name"}
    (entry,) = report["deniedNames"]
    assert (entry["name"], entry["allow"]) == ("other.example.com", "")


def test_an_address_rule_opens_its_port(fetch: Any) -> None:
    found, report = fetch("198.51.100.20/80", "198.51.100.20/81", options=("--allow", "198.51.100.20:80"))
    assert found == {"198.51.100.20/80": "200", "198.51.100.20/81": REFUSED}
    assert [entry["port"] for entry in report["deniedPackets"]] == [81]


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # one that ends while it is looked at
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def threads(pid: int) -> list[dict[str, str]]:
    """What the kernel says of each that is still there."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.append(dict(line.split(":", 1) for line in (task / "status").read_text().splitlines()))
    return found


def test_the_guard_keeps_one_capability_and_starts_nothing(connected: Any) -> None:
    """In each of its threads; the one that opens sockets in the host's network has none."""
    options = ("--allow", "api.example.com", "--", connected.python, "-c", "print('on', flush=True); input()")
    env = {"OPENSANDBOX_EGRESS_DNS_UPSTREAM": RESOLVER}
    process = connected.start("real", *options, env=env, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "on\n"
    guards = []
    for pid in descendants(process.pid):
        seen = threads(pid)
        kept = {int(thread["CapEff"], 16) for thread in seen}
        if kept == {1 << 12, 0}:
            guards.append(pid)
            assert {int(thread["CapPrm"], 16) for thread in seen} == kept
            assert {(t["NoNewPrivs"].strip(), t["Seccomp"].strip()) for t in seen} == {("1", "2")}
    assert len(guards) == 1
    process.communicate("\n", timeout=120)
    assert process.returncode == 0
