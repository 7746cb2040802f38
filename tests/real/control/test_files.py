"""The policy file on a real file system: what is read, what is refused, and that a change is all or nothing."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from egress.control.files import LIMIT, FileError, PolicyFile
from policies.model import Action

if TYPE_CHECKING:
    from pathlib import Path

OLD = b'{"defaultAction":"deny","egress":[{"action":"allow","target":"old.example.com"}]}'
NEW = b'{"defaultAction":"deny","egress":[{"action":"allow","target":"new.example.com"}]}'


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    path = tmp_path / "policy.json"
    path.write_bytes(OLD)
    return PolicyFile(str(path))


def problem(file: PolicyFile) -> FileError:
    with pytest.raises(FileError) as caught:
        file.load()
    assert str(caught.value).isprintable()
    return caught.value


def test_load(file: PolicyFile) -> None:
    policy = file.load()
    assert policy is not None
    assert [rule.target for rule in policy.egress] == ["old.example.com"]


@pytest.mark.parametrize("name", ["policy.YAML", "policy.yml", "policy", "policy.conf"])
def test_yaml(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("defaultAction: allow # a comment\n")
    file = PolicyFile(str(path))
    policy = file.load()
    assert policy is not None
    assert policy.default is Action.ALLOW
    staged = file.stage(json.dumps(policy._replace(default=Action.DENY).to_document()).encode())
    staged.commit()
    again = file.load()
    assert again is not None
    assert again.default is Action.DENY


def test_missing_unreadable_and_invalid_differ(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(b'{"egress": 1}')
    assert problem(file).kind == "invalid"
    assert "$.egress" in str(problem(file))
    path.unlink()
    assert file.load() is None
    path.mkdir()
    assert problem(file).kind == "unreadable"


def test_only_regular_files_are_read_and_nothing_blocks(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    real = path.rename(tmp_path / "real")
    path.symlink_to(real)
    assert "link" in str(problem(file))
    path.unlink()
    os.mkfifo(path)
    signal.alarm(60)  # opening a FIFO the ordinary way waits for a writer
    try:
        assert "regular" in str(problem(file))
    finally:
        signal.alarm(0)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert problem(file).kind == "unreadable"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        assert problem(file).kind == "unreadable"


def test_size_is_capped(file: PolicyFile, tmp_path: Path) -> None:
    with (tmp_path / "policy.json").open("wb") as handle:
        handle.truncate(LIMIT + 1)
    assert str(LIMIT) in str(problem(file))


def test_stage_and_commit(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.chmod(0o640)
    file.load()
    staged = file.stage(NEW)
    assert path.read_bytes() == OLD
    assert not file.changed_since()
    staged.commit()
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o640
    assert not file.changed_since()  # our own change is none
    assert os.listdir(tmp_path) == ["policy.json"]
    staged.discard()
    with pytest.raises(FileError):
        staged.commit()
    assert path.read_bytes() == NEW


def test_discard(file: PolicyFile, tmp_path: Path) -> None:
    staged = file.stage(NEW)
    staged.discard()
    staged.discard()
    assert (tmp_path / "policy.json").read_bytes() == OLD
    assert os.listdir(tmp_path) == ["policy.json"]


def test_descriptors_are_closed(file: PolicyFile) -> None:
    gc.collect()  # what other tests have left to it must not go in the middle of this one
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        file.check()
        file.load()
        file.stage(NEW).discard()
        file.stage(NEW).commit()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_first_version(tmp_path: Path) -> None:
    file = PolicyFile(str(tmp_path / "policy.json"))
    file.check()
    assert file.load() is None
    file.stage(NEW).commit()
    assert (tmp_path / "policy.json").read_bytes() == NEW


def test_a_rename_that_fails_leaves_the_old_one(file: PolicyFile, tmp_path: Path) -> None:
    staged = file.stage(NEW)
    path = tmp_path / "policy.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError) as caught:
        staged.commit()
    assert caught.value.kind == "unwritable"
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_link_in_its_place_is_replaced_not_followed(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    victim = path.rename(tmp_path / "victim")
    path.symlink_to(victim)
    file.stage(NEW).commit()
    assert victim.read_bytes() == OLD
    assert path.read_bytes() == NEW
    assert not path.is_symlink()


def test_changes_from_outside_are_seen(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    file.load()
    assert not file.changed_since()
    (tmp_path / "other").write_bytes(OLD)
    (tmp_path / "other").rename(path)
    assert file.changed_since()
    file.load()
    assert not file.changed_since()
    path.unlink()
    assert file.changed_since()


def test_check_removes_what_a_crash_left(file: PolicyFile, tmp_path: Path) -> None:
    file.stage(NEW)  # and never again heard of
    (tmp_path / ".policy.json.bak").touch()
    assert len(os.listdir(tmp_path)) == 3
    file.check()
    assert sorted(os.listdir(tmp_path)) == [".policy.json.bak", "policy.json"]


def test_check_wants_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "policy.json", tmp_path / "file" / "policy.json"):
        (tmp_path / "file").touch()
        with pytest.raises(FileError) as caught:
            PolicyFile(str(path)).check()
        assert caught.value.kind == "unwritable"


MOUNTED = """
import sys
from egress.control.files import FileError, PolicyFile
file = PolicyFile(sys.argv[1])
try:
    file.check()
except FileError as error:
    print(error.kind, error)
else:
    print("fine")
try:
    file.stage(b"x" * 3_000_000).commit()
except FileError as error:
    print(error.kind, error)
"""


def mounted(script: str, path: Path) -> list[str]:
    """Run the above in a mount namespace of its own, after the shell commands in `script`."""
    import sys

    command = f'{script}\nexec "$0" -c "$1" {path}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", command, sys.executable, MOUNTED],
        check=False, capture_output=True, text=True, timeout=60, cwd=os.getcwd(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_mount_point_of_its_own_is_refused_at_start(file: PolicyFile, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    checked, staged = mounted(f"mount --bind {path} {path}", path)
    assert checked.startswith("unwritable")
    assert "mount point" in checked
    assert staged.startswith("unwritable")  # EBUSY
    assert path.read_bytes() == OLD


def test_a_read_only_folder_is_refused_at_start(file: PolicyFile, tmp_path: Path) -> None:
    script = f"mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}"
    checked, staged = mounted(script, tmp_path / "policy.json")
    assert checked.startswith("unwritable")
    assert "writable" in checked
    assert staged.startswith("unwritable")


def test_a_full_disk_is_one_error_and_leaves_nothing(file: PolicyFile, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = f"mount -t tmpfs -o size=1m none {folder}; echo '{{}}' > {folder}/policy.json"
    checked, staged = mounted(script, folder / "policy.json")
    assert checked == "fine"
    assert staged.startswith("unwritable")
    assert "space" in staged
