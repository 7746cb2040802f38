"""What one `egress docker watch` leaves to no other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from egress.docker.api import Docker
from egress.docker.watch import WatchError, _alone

if TYPE_CHECKING:
    from pathlib import Path

ONE, OTHER = f"sp{os.getpid()}a", f"sp{os.getpid()}b"


def test_only_one_watches_a_bridge_or_a_daemon(tmp_path: Path) -> None:
    """On another network than the first's it would kill all whom the first guards, for being on the wrong one."""
    (tmp_path / "docker.sock").touch()
    (tmp_path / "link").symlink_to(tmp_path / "docker.sock")
    docker, same = Docker(f"unix://{tmp_path}/docker.sock"), Docker(f"unix://{tmp_path}/link")
    other = Docker(f"unix://{tmp_path}/other.sock")
    first = _alone(ONE, docker)
    with pytest.raises(WatchError, match=f"runs for {ONE}; end that one first"):
        _alone(ONE, other)
    with pytest.raises(WatchError, match="/link; end that one first"):
        _alone(OTHER, same)
    beside = _alone(OTHER, other)
    for held in (*first, *beside):
        held.close()
    for held in _alone(ONE, same):
        held.close()
