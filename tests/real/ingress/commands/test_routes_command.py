"""`ingress routes` as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-m", "ingress", "routes")
TWO = '{"sandboxes": {"a": {"host": "10.0.0.7"}, "b": {"host": "127.0.0.1", "secure_access_token": "s3cret"}}}'


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SALLYPORT_", "KUBE", "DOCKER_"))}
    environ["PYTHONPATH"] = os.getcwd()
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=30)


def test_a_file_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_text(TWO)
    done = run("--routes", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"source: {path}\n")
    assert "a   10.0.0.7   any    open    ready\n" in done.stdout
    assert "127.0.0.1 is loopback; --allow-target 127.0.0.1 opens it" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    done = run("--json", f"--routes={path}", "--allow-target", "127.0.0.0/8")
    assert [each["ready"] for each in json.loads(done.stdout)["sandboxes"]] == [True, True]


def test_without_a_file_it_says_where_it_looks(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert done.returncode == 1
    assert "no routes file yet; write one to " in done.stdout
    assert "routes.yaml or routes.json" in done.stdout


def test_a_broken_file_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("sandboxes: {a: {hots: 10.0.0.7}}")
    done = run("--routes", str(path))
    assert done.returncode == 1
    assert f"wrong:  {path}: sandboxes.a.hots: unknown key" in done.stdout


def test_a_daemon_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = run("--provider-type", "docker", "--docker-host", f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1
    assert "the daemon can't be reached: no such file or directory" in done.stdout


def test_a_setting_that_is_wrong_is_one_line(tmp_path: Path) -> None:
    for arguments in (
        ("--bogus",),
        ("--provider-type", "docker", "--docker-host", "ssh://host"),
        ("--provider-type", "batchsandbox"),
        ("--provider-type", "batchsandbox", "--kubeconfig", f"{tmp_path}/none"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("ingress routes: ")
        assert done.stderr.count("\n") == 1


def test_watch_prints_each_change(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_text(TWO)
    # Who runs us in the background may have us ignore SIGINT, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*COMMAND, "--watch", "--json", "--routes", str(path)], stdout=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        assert len(json.loads(process.stdout.readline())["sandboxes"]) == 2
        beside = tmp_path / "beside"
        beside.write_text(TWO.replace("10.0.0.7", "10.0.0.8").replace('"b"', '"c"'))
        beside.rename(path)
        changes = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [(each["id"], each["sandbox"] and each["sandbox"]["address"]) for each in changes] == [
            ("b", None),
            ("a", "10.0.0.8"),
            ("c", "127.0.0.1"),
        ]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        process.stdout.close()  # type: ignore[union-attr]
