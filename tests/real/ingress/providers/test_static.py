"""A routes file on a real file system: every way in which such files are changed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from ingress.providers import ProviderSettings, build
from ingress.providers import static as module
from ingress.providers.inotify import Watcher, trail
from ingress.providers.static import StaticProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingress.providers.base import Provider, Say
    from ingress.routes import Routes


def one(name: str, host: str = "10.0.0.7") -> str:
    return f'{{"sandboxes": {{"{name}": {{"host": "{host}"}}}}}}'


def replace(path: Path, text: str) -> None:
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.rename(path)


def static(path: Path) -> Callable[[Routes, Say], Provider]:
    return lambda routes, say: build("static", ProviderSettings(routes_file=str(path)), routes, say)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routes.json"


@pytest.fixture(autouse=True)
def looks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look is further away than any test waits: what is noticed was told by the kernel."""
    monkeypatch.setattr(module, "POLL", 600.0)


def test_a_file_is_read_and_followed_when_replaced_by_rename(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            assert followed.provider.health() == (True, "", str(path))
            replace(path, one("b"))
            await following.until(lambda: followed.ids() == ["b"])
            assert [change[0] for change in followed.changes] == ["a", "a", "b"]

    asyncio.run(scenario())


def test_a_file_written_in_place_is_followed_when_it_is_closed(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            with path.open("w") as file:  # truncates
                file.write(one("b")[:10])
                file.flush()
                await asyncio.sleep(0.02)
                assert followed.ids() == ["a"]
                file.write(one("b")[10:])
            await following.until(lambda: followed.ids() == ["b"])
            assert not [words for level, words in followed.said if level != "info"]

    asyncio.run(scenario())


def test_a_file_that_its_writer_keeps_open_is_read_when_it_has_settled(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            with path.open("r+") as file:
                file.write(one("b"))
                file.flush()
                await following.until(lambda: followed.ids() == ["b"])

    asyncio.run(scenario())


def test_a_configmap_is_followed_when_its_link_is_swapped(following: Any, tmp_path: Path) -> None:
    """What the kubelet does: routes.json -> ..data/routes.json, ..data -> a folder, ..data replaced by rename."""

    async def scenario() -> None:
        for name in ("a", "b"):
            (tmp_path / f"..{name}").mkdir()
            (tmp_path / f"..{name}" / "routes.json").write_text(one(name))
        (tmp_path / "..data").symlink_to("..a")
        path = tmp_path / "routes.json"
        path.symlink_to("..data/routes.json")
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            (tmp_path / "..tmp").symlink_to("..b")
            (tmp_path / "..tmp").rename(tmp_path / "..data")
            await following.until(lambda: followed.ids() == ["b"])
            replace(tmp_path / "..b" / "routes.json", one("c"))  # and where the link leads now is watched too
            await following.until(lambda: followed.ids() == ["c"])

    asyncio.run(scenario())


def test_a_broken_file_keeps_the_routes_and_is_reported(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            replace(path, '{"sandboxes": {"b": {"host": "10.0.0.7", "ports": [1, 70000]}}}')
            await following.until(lambda: followed.provider.health().degraded)
            health = followed.provider.health()
            assert health.loaded
            assert "sandboxes.b.ports[1]: 70000 is no port" in health.degraded
            assert "the last routes go on (1)" in health.degraded
            assert followed.ids() == ["a"]
            assert [level for level, words in followed.said if "ports[1]" in words] == ["error"]
            replace(path, one("b"))
            await following.until(lambda: followed.ids() == ["b"])
            assert not followed.provider.health().degraded

    asyncio.run(scenario())


def test_i11_a_file_that_is_gone_keeps_the_routes_until_it_is_back(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            path.unlink()
            await following.until(lambda: "it is gone" in followed.provider.health().degraded)
            assert followed.ids() == ["a"]
            path.write_text(one("b"))
            await following.until(lambda: followed.ids() == ["b"])
            assert not followed.provider.health().degraded

    asyncio.run(scenario())


def test_an_empty_file_is_no_sandboxes(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(static(path)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            replace(path, "")
            await following.until(lambda: followed.ids() == [])
            assert followed.provider.health() == (True, "", str(path))

    asyncio.run(scenario())


def test_a_file_that_is_missing_at_the_start_is_picked_up_with_its_folder(
    following: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL", 1.0)  # what appears while its folder's watch is laid is found by looking

    async def scenario() -> None:
        path = tmp_path / "not" / "yet" / "routes.yaml"
        async with following(static(path)) as followed:
            await following.until(lambda: followed.provider.health().loaded)
            assert f"no routes file yet; write one to {path}" in followed.provider.health().degraded
            path.parent.mkdir(parents=True)
            path.write_text("sandboxes: {a: {host: 10.0.0.7}}")
            await following.until(lambda: followed.ids() == ["a"])
            assert not followed.provider.health().degraded

    asyncio.run(scenario())


def test_a_file_that_is_broken_at_the_start_is_not_loaded(following: Any, path: Path) -> None:
    async def scenario() -> None:
        path.write_text("{")
        async with following(static(path)) as followed:
            await following.until(lambda: followed.provider.health().degraded)
            assert not followed.provider.health().loaded
            assert "there are no routes" in followed.provider.health().degraded
            replace(path, one("a"))
            await following.until(lambda: followed.provider.health().loaded)

    asyncio.run(scenario())


def test_without_a_name_the_first_of_the_usual_places_is_followed(
    following: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module, "DEFAULT_PATHS", (str(tmp_path / "etc" / "routes.yaml"), *module.DEFAULT_PATHS[1:]))
        async with following(lambda routes, say: build("static", ProviderSettings(), routes, say)) as followed:
            await following.until(lambda: "or routes.yaml or routes.json" in followed.provider.health().degraded)
            (tmp_path / "routes.json").write_text(one("a"))
            await following.until(lambda: followed.ids() == ["a"])
            assert followed.provider.health().source == str(tmp_path / "routes.json")
            (tmp_path / "routes.yaml").write_text("sandboxes: {b: {host: b}}")  # a choice once made is kept
            replace(tmp_path / "routes.json", one("c"))
            await following.until(lambda: followed.ids() == ["c"])

    asyncio.run(scenario())


def test_without_inotify_it_is_followed_by_looking(following: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.05)

    async def scenario() -> None:
        path.write_text(one("a"))
        async with following(lambda routes, say: StaticProvider((str(path),), routes, say, inotify=False)) as followed:
            await following.until(lambda: followed.ids() == ["a"])
            assert "looked at every second: inotify is switched off" in followed.provider.health().source
            replace(path, one("b"))
            await following.until(lambda: followed.ids() == ["b"])
            path.write_text(one("c"))
            await following.until(lambda: followed.ids() == ["c"])

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_refused_and_makes_nobody_wait(following: Any, path: Path, kind: str) -> None:
    async def scenario() -> None:
        path.mkdir() if kind == "folder" else os.mkfifo(path)
        async with following(static(path)) as followed:
            await following.until(lambda: "is not a regular file" in followed.provider.health().degraded)

    asyncio.run(scenario())


def test_a_large_file_is_followed(following: Any, path: Path) -> None:
    async def scenario() -> None:
        many = ", ".join(f'"s{number}": {{"host": "10.0.0.7", "ports": [8080]}}' for number in range(8000))
        path.write_text(f'{{"sandboxes": {{{many}}}}}')
        async with following(static(path)) as followed:
            await following.until(lambda: len(followed.routes) == 8000)

    asyncio.run(scenario())


def test_neighbours_of_the_file_wake_nobody(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_text("")
    assert trail(str(path)) == {str(tmp_path): {"routes.json"}} or trail(str(path))[str(tmp_path)] == {"routes.json"}
    watcher = Watcher()
    try:
        assert watcher.watch({str(tmp_path)})
        (tmp_path / "neighbour").write_text("x")
        assert {event.name for event in watcher.events()} == {"neighbour"}
        path.write_text("x")
        assert {event.name for event in watcher.events()} == {"routes.json"}
        watcher.watch(set())
        path.write_text("y")
        assert not list(watcher.events())
    finally:
        watcher.close()


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert trail(str(tmp_path / "a"))[str(tmp_path)] == {"a", "b"}
