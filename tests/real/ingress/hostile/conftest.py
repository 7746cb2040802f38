"""Origins that keep every byte, and a gateway between them and the test's sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Ground, Origin, echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.ingress.hostile.ground import Script

    OriginFactory = Callable[..., Origin]


@pytest.fixture(scope="session")
def ground() -> Iterator[Ground]:
    """The loop that every origin lives on."""
    with Ground() as made:
        yield made


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all who need no settings of their own: header, host and path; `box` and `other` on loopback,
    `locked` with the access token `secret`."""
    sandboxes = {
        "box": {"host": "127.0.0.1"},
        "other": {"host": "127.0.0.1"},
        "locked": {"host": "127.0.0.1", "secure_access_token": "secret"},
    }
    with Gateway(tmp_path_factory.mktemp("gate"), sandboxes=sandboxes) as made:
        yield made


@pytest.fixture(scope="module")
def module_origin(ground: Ground) -> Iterator[Origin]:
    """An echoing origin that a module's cases share; its log grows."""
    made = ground.origin(echo)
    yield made
    made.close()
    assert made.errors == []


@pytest.fixture
def start_origin(ground: Ground) -> Iterator[OriginFactory]:
    """Starts origins with scripts; they end with the test."""
    started: list[Origin] = []

    def start(script: Script = echo, *, host: str = "127.0.0.1", port: int = 0, keep: bool = True) -> Origin:
        started.append(ground.origin(script, host=host, port=port, keep=keep))
        return started[-1]

    yield start
    for origin in started:
        origin.close()
    assert [error for origin in started for error in origin.errors] == []
