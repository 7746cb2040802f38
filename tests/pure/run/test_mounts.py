"""Which of the host's paths a run lays something over."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from egress.isolation import mounts


def plan(cwd: str, home: str, *shared: str) -> mounts.MountPlan:
    return mounts.make_plan(
        cwd=cwd, home=home, shared=shared, guarded=False, runtime_folder="/run/user/1", nameserver="127.0.0.1"
    )


def test_below() -> None:
    assert mounts.below("/run/x", "/run")
    assert mounts.below("/run", "/run")
    assert mounts.below("/run", "/")
    assert not mounts.below("/running", "/run")


def test_fresh_folders_are_real_ones_and_do_not_nest() -> None:
    fresh = plan("/", "/").fresh
    assert {"/run", "/tmp"} <= set(fresh)
    assert all(not Path(path).is_symlink() for path in fresh)
    assert not any(a != b and mounts.below(a, b) for a in fresh for b in fresh)


def test_a_fresh_folder_itself_is_never_brought_back() -> None:
    assert not {"/", "/tmp", "/run"} & set(plan("/tmp", "/run").kept)
    assert not {"/", "/tmp", "/run"} & set(plan("/", "/").kept)


def test_working_folder_and_home_stay(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert str(tmp_path) in plan(str(link), "/").kept


def test_listening_sockets_are_found_and_spared_where_shared(tmp_path: Path) -> None:
    path = tmp_path / "a socket with spaces"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        assert str(path) in mounts.listening_sockets()
        assert str(path) in plan("/", "/").sockets
        assert str(path) not in plan("/", "/", str(tmp_path)).sockets
    path.unlink()


def test_a_shared_path_has_to_be_there() -> None:
    with pytest.raises(FileNotFoundError):
        plan("/", "/", "/no/such/path")
