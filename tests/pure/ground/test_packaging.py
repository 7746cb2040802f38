"""What the project promises about its own packaging: exact locks, no registry named, extras kept apart."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
LOCKS = sorted((CHECKOUT / "requirements").glob("*.lock"))
# What only the gateway, the tools or the tests need must not come into the sidecar's image.
NOT_IN_THE_SIDECAR = {"aiohttp", "uvloop", "httptools", "redis", "pyroute2", "dnslib", "pytest", "hypothesis", "mypy"}


def pinned(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE))


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return found


def test_every_lock_is_there() -> None:
    assert [lock.stem for lock in LOCKS] == ["build", "dev", "egress", "ingress"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_hashes_and_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    blocks = re.split(r"\n(?=[a-z])", text)[1:]
    assert len(blocks) == len(pinned(lock)) > 0
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_what_ships_is_what_was_tested(lock: Path) -> None:
    assert pinned(lock).items() <= pinned(CHECKOUT / "requirements" / "dev.lock").items()


def test_the_sidecar_installs_only_what_it_uses() -> None:
    assert project()["dependencies"] == []
    names = set(pinned(CHECKOUT / "requirements" / "egress.lock"))
    assert {"h11", "idna", "pip-nftables", "pyyaml"} <= names
    assert not names & NOT_IN_THE_SIDECAR


def test_every_requirement_is_locked() -> None:
    locked = pinned(CHECKOUT / "requirements" / "dev.lock")
    for requirements in project()["optional-dependencies"].values():
        for requirement in requirements:
            assert re.split(r"[>=<\[]", requirement)[0].lower() in locked


def test_both_commands_are_declared() -> None:
    assert project()["scripts"] == {"egress": "egress.__main__:main", "ingress": "ingress.__main__:main"}
