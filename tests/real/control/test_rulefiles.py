"""The operator's rule files on a real file system, followed by a real loop."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from egress.control import rulefiles
from egress.control.rulefiles import LIMIT, AlwaysRules, RuleFiles, Targets
from tests.real.control.threaded import ThreadedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Follower:
    """Rule files and what was heard of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadedLoop()
        self.loop = self._thread.loop
        self.heard: list[AlwaysRules] = []
        self.reports: list[str] = []
        self.files = RuleFiles(self.loop, self.heard.append, self.reports.append, str(folder))

    def start(self) -> AlwaysRules:
        rules = self.files.load()
        self.files.start()
        self._thread.start()
        return rules

    def close(self) -> None:
        self._thread.close()

    def put(self, name: str, text: str | bytes) -> None:
        """Replace a file as a careful program does."""
        (self.folder / "new").write_bytes(text.encode() if isinstance(text, str) else text)
        (self.folder / "new").rename(self.folder / name)

    def wait(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Until `condition` holds."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < seconds, (self.heard, self.reports)
            time.sleep(0.01)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    made = Follower(tmp_path)
    yield made
    made.close()


def targets(rules: AlwaysRules) -> tuple[list[str], list[str]]:
    return [rule.target for rule in rules.deny], [rule.target for rule in rules.allow]


def test_none_is_no_fault(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "missing")
    assert targets(follower.start()) == ([], [])
    assert follower.files.fault is None
    assert follower.reports == []
    follower.close()


def test_first_reading(follower: Follower) -> None:
    follower.put("deny.always", "# operator\nbad.example.com\n*.evil.example # all of it\n10.0.0.0/8\n\n")
    follower.put("allow.always", "cache.example.com\n")
    follower.put("log_skip.always", "*.noise.example\n")
    rules = follower.start()
    assert targets(rules) == (["bad.example.com", "*.evil.example", "10.0.0.0/8"], ["cache.example.com"])
    assert rules.deny[0].origin == "deny.always:2"
    assert rules.silent.covers_name("a.noise.example")
    assert follower.heard == []


def test_a_change_is_heard_within_a_second(follower: Follower) -> None:
    follower.start()
    follower.put("deny.always", "bad.example.com\n")
    follower.wait(lambda: bool(follower.heard))
    assert rulefiles.POLL + rulefiles._SETTLE < 1, "but for what the machine takes for it"
    assert targets(follower.heard[-1]) == (["bad.example.com"], [])
    follower.put("allow.always", "cache.example.com\n")
    follower.wait(lambda: len(follower.heard) == 2)
    assert targets(follower.heard[-1]) == (["bad.example.com"], ["cache.example.com"])
    (follower.folder / "deny.always").unlink()
    follower.wait(lambda: len(follower.heard) == 3)
    assert targets(follower.heard[-1]) == ([], ["cache.example.com"])


def test_two_quick_writes_are_both_seen(follower: Follower) -> None:
    follower.start()
    path = follower.folder / "deny.always"
    path.write_text("a.example.com\n")
    follower.wait(lambda: bool(follower.heard))
    stamp = path.stat()
    path.write_text("b.example.com\n")  # same size, and by its time the same version
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    follower.wait(lambda: targets(follower.heard[-1])[0] == ["b.example.com"])


def test_a_file_being_rewritten_in_place_does_not_lift_its_rules(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rulefiles, "_SETTLE", 2.0)  # far longer than it stays empty, even where this thread is late
    follower.put("deny.always", "bad.example.com\n")
    follower.start()
    for _ in range(15):
        with (follower.folder / "deny.always").open("w") as file:  # empty for a moment
            time.sleep(0.03)
            file.write("bad.example.com\nworse.example.com\n")
        time.sleep(0.07)
    follower.wait(lambda: bool(follower.heard))
    assert all("bad.example.com" in targets(rules)[0] for rules in follower.heard)


def test_a_broken_new_version_keeps_the_last_good_one(follower: Follower) -> None:
    follower.put("deny.always", "bad.example.com\n")
    follower.start()
    for number, text in enumerate(["fine.example.com\nnot a target\n", "a..b\n", "x" * (LIMIT + 1)]):
        follower.put("deny.always", text)
        follower.wait(lambda number=number: len(follower.reports) == number + 1)  # type: ignore[misc]
        assert "deny.always" in follower.reports[-1]
        assert "stay in force" in follower.reports[-1]
    follower.put("deny.always", b"\xff\xfe")
    follower.wait(lambda: len(follower.reports) == 4)
    assert "UTF-8" in follower.reports[-1]
    assert follower.heard == []
    assert follower.files.fault is None
    assert targets(follower.files.rules) == (["bad.example.com"], [])
    follower.put("deny.always", "good.example.com\n")
    follower.wait(lambda: bool(follower.heard))
    assert targets(follower.heard[-1]) == (["good.example.com"], [])


def test_a_broken_deny_at_start_is_a_fault_until_mended(follower: Follower) -> None:
    follower.put("deny.always", "ok.example.com\n%%%\n")
    follower.put("allow.always", "%%%\n")
    assert targets(follower.start()) == ([], [])
    fault = str(follower.files.fault)
    assert "deny.always:2" in fault
    assert fault.isprintable()
    assert len(follower.reports) == 2
    follower.put("deny.always", "ok.example.com\n")
    follower.wait(lambda: bool(follower.heard))
    assert follower.files.fault is None
    assert targets(follower.heard[-1]) == (["ok.example.com"], [])


def test_mending_by_removal_is_heard_too(follower: Follower) -> None:
    follower.put("deny.always", "%%%\n")
    follower.start()
    assert "deny.always" in str(follower.files.fault)
    (follower.folder / "deny.always").unlink()
    follower.wait(lambda: bool(follower.heard))
    assert follower.files.fault is None


@pytest.mark.parametrize("kind", ["link", "fifo", "device", "folder", "loop"])
def test_e19_only_regular_files_are_read(follower: Follower, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "deny.always"
    if kind == "link":
        (tmp_path / "elsewhere").write_text("bad.example.com\n")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    follower.start()
    assert follower.files.fault
    assert "everything stays closed" in follower.reports[0]


def test_a_config_map_is_read_and_followed(follower: Follower) -> None:
    """How Kubernetes lays a ConfigMap out, and how it changes one: a new folder, then one rename."""

    def version(name: str, text: str) -> None:
        (follower.folder / name).mkdir()
        (follower.folder / name / "deny.always").write_text(text)
        (follower.folder / "..data_tmp").symlink_to(name)
        (follower.folder / "..data_tmp").rename(follower.folder / "..data")

    version("..2026_01_01", "bad.example.com\n")
    (follower.folder / "deny.always").symlink_to("..data/deny.always")
    assert targets(follower.start())[0] == ["bad.example.com"]
    version("..2026_01_02", "worse.example.com\n")
    follower.wait(lambda: bool(follower.heard))
    assert targets(follower.heard[-1])[0] == ["worse.example.com"]


def test_a_config_map_that_leads_elsewhere_is_not_followed(follower: Follower, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "deny.always").write_text("bad.example.com\n")
    (tmp_path / "..data").symlink_to(outside)
    (tmp_path / "deny.always").symlink_to("..data/deny.always")
    follower.start()
    assert follower.files.fault


def test_targets_of_nothing() -> None:
    assert not Targets().covers_name("a.example.com")
    assert not Targets().covers_address("192.0.2.1")
    assert not Targets().covers_address("junk")
