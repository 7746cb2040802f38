"""The operator's rule files, which stand above every policy, and how a change of one is noticed.

`deny.always` > `allow.always` > policy; `log_skip.always` only silences log lines. Each file is looked at twice a
second (`lstat`); one that has changed and then kept still for a tenth of a second is read again on the helper thread,
so an editor that empties the file before it writes does not lift the rules for a moment.

A new version that cannot be read or parsed is reported and the rules read before it stay. At start there are none
before it: then a broken `deny.always` is a `fault`, and everything is to stay closed until it is mended; a broken
`allow.always` opens nothing, so it is only reported.

Links are not followed, with one exception: the layout in which Kubernetes mounts a ConfigMap (`name` to `..data/name`,
`..data` to a folder beside it), where nothing leads out of the rules' own folder.
"""

from __future__ import annotations

import os
import stat
import time

from egress.control.files import FileError, Stamp, look, read_regular
from policies.address import AddressError, parse_address
from policies.model import Action, PolicyError
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from egress.loop import Loop
    from policies.model import Rule

FOLDER = "/var/egress/rules"
LIMIT = 1024 * 1024
"""Bytes of a rule file at most."""
POLL = 0.5
"""Seconds between looks."""
_SETTLE = 0.1  # seconds that a changed file must keep still
_TRIES = 20  # looks after which one that never keeps still is read all the same
_YOUNG = 2 * 10**9  # nanoseconds: a file this fresh may change again without a new time stamp


class Targets:
    """A set of targets to compare with, of `log_skip.always`."""

    __slots__ = ("_any", "_names", "_networks", "_suffixes")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._any = False
        self._names: set[str] = set()
        self._suffixes: set[str] = set()
        self._networks: dict[tuple[int, int], set[int]] = {}  # (bytes, length) -> the prefix's leading bits
        for rule in rules:
            if rule.network is not None:
                packed, length = rule.network
                bits = int.from_bytes(packed, "big") >> (len(packed) * 8 - length)
                self._networks.setdefault((len(packed), length), set()).add(bits)
            elif rule.kind == "any":
                self._any = True
            elif rule.kind == "suffix":
                self._suffixes.add(rule.target[2:])
            else:
                self._names.add(rule.target)

    def covers_name(self, name: str) -> bool:
        """Is the canonical name one of the targets, or below one of the suffixes."""
        if self._any or name in self._names:
            return True
        while self._suffixes and name:
            name = name.partition(".")[2]
            if name in self._suffixes:
                return True
        return False

    def covers_address(self, text: str) -> bool:
        """Does one of the prefixes hold the address."""
        if not self._networks:
            return False
        try:
            packed = parse_address(text)
        except AddressError:
            return False
        number = int.from_bytes(packed, "big")
        return any(
            size == len(packed) and number >> (size * 8 - length) in prefixes
            for (size, length), prefixes in self._networks.items()
        )


class AlwaysRules(NamedTuple):
    """What the three files say."""

    deny: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()
    silent: Targets = Targets()


class RuleFiles:
    """Reads and follows the files in one folder; belongs to the loop's thread.

    `changed(rules)` is called with new rules, also when a fault has gone; `report(text)` with what is wrong.
    """

    def __init__(
        self,
        loop: Loop,
        changed: Callable[[AlwaysRules], None],
        report: Callable[[str], None],
        folder: str = FOLDER,
    ) -> None:
        self._loop = loop
        self._changed = changed
        self._report = report
        self._deny = _File(folder, "deny.always", Action.DENY)
        self._allow = _File(folder, "allow.always", Action.ALLOW)
        self._skip = _File(folder, "log_skip.always", Action.ALLOW)
        self._files = (self._deny, self._allow, self._skip)
        self._stopped = True
        self.rules = AlwaysRules()

    @property
    def fault(self) -> str | None:
        """Why everything has to stay closed: `deny.always` has not been read once. None when that is not so."""
        return None if self._deny.good else self._deny.problem

    def load(self) -> AlwaysRules:
        """Read all three now, before the loop runs."""
        for file in self._files:
            file.take(_read(file.folder, file.name, file.action))
            self._tell(file)
        self.rules = self._collect()
        return self.rules

    def start(self) -> None:
        """Begin to follow changes."""
        self._stopped = False
        self._loop.call_later(POLL, self._poll)

    def stop(self) -> None:
        self._stopped = True

    def _collect(self) -> AlwaysRules:
        return AlwaysRules(self._deny.rules, self._allow.rules, Targets(self._skip.rules))

    def _tell(self, file: _File) -> None:
        if not file.problem:
            return
        if file.good:
            consequence = "the rules read before it stay in force"
        elif file is self._deny:
            consequence = "everything stays closed until it is mended"
        else:
            consequence = "it counts as empty until it is mended"
        self._report(f"{file.problem}; {consequence}")

    def _poll(self) -> None:
        if self._stopped:
            return
        self._loop.call_later(POLL, self._poll)
        for file in self._files:
            if not file.reading and file.differs():
                file.reading = True
                self._settle(file, file.look())

    def _settle(self, file: _File, seen: Stamp | None) -> None:
        self._loop.call_later(_SETTLE, lambda: self._read_if_still(file, seen, 0))

    def _read_if_still(self, file: _File, seen: Stamp | None, tries: int) -> None:
        now = file.look()
        if now != seen and tries < _TRIES:
            self._loop.call_later(_SETTLE, lambda: self._read_if_still(file, now, tries + 1))
            return
        self._loop.run_in_thread(
            lambda: _read(file.folder, file.name, file.action), lambda found, error: self._have(file, found, error)
        )

    def _have(self, file: _File, found: _Found | None, error: BaseException | None) -> None:
        file.reading = False
        if self._stopped:
            return
        before = (file.rules, file.problem, file.good)
        file.take(found or _Found(file.look(), None, f"{file.path}: {error}", 0))
        after = (file.rules, file.problem, file.good)
        if file.problem and file.problem != before[1]:
            self._tell(file)
        if (after[0], after[2]) != (before[0], before[2]):
            self.rules = self._collect()
            self._changed(self.rules)


class _Found(NamedTuple):
    """What a look into a file brought."""

    stamp: Stamp | None
    rules: tuple[Rule, ...] | None  # None: could not be read or parsed
    problem: str
    content: int  # a hash of the bytes


class _File:
    """One of the files and what was last known of it."""

    __slots__ = ("action", "content", "folder", "good", "name", "path", "problem", "reading", "rules", "stamp", "young")

    def __init__(self, folder: str, name: str, action: Action) -> None:
        self.folder = folder
        self.name = name
        self.path = os.path.join(folder, name)
        self.action = action
        self.rules: tuple[Rule, ...] = ()
        self.good = False  # some version, or its absence, has been read
        self.problem = ""
        self.stamp: Stamp | None = None
        self.content = 0
        self.young = False
        self.reading = False

    def look(self) -> Stamp | None:
        return look(_resolve(self.folder, self.name) or self.path)

    def differs(self) -> bool:
        """Whether the file must be read again.

        A file written twice within the clock's granularity keeps its stamp: one that was fresh when it was read is
        read once more when it no longer is.
        """
        stamp = self.look()
        if stamp != self.stamp:
            return True
        return self.young and (stamp is None or not _fresh(stamp))

    def take(self, found: _Found) -> None:
        self.young = found.stamp is not None and _fresh(found.stamp)
        self.stamp = found.stamp
        self.problem = found.problem
        if found.rules is not None:
            self.good = True
            if found.content != self.content or not found.content:
                self.rules = found.rules
            self.content = found.content


def _fresh(stamp: Stamp) -> bool:
    return abs(time.time_ns() - stamp.modified) < _YOUNG


def _read(folder: str, name: str, action: Action) -> _Found:
    """Read and parse one file; safe on any thread."""
    path = os.path.join(folder, name)
    stamp = None
    try:
        real = _resolve(folder, name) or path
        stamp = look(real)
        content = read_regular(real, LIMIT)
        if content is None:
            return _Found(None, (), "", 0)
        data, stamp = content
        from policies.parser import parse_rule_file

        return _Found(stamp, tuple(parse_rule_file(data.decode(), action, name)), "", hash(data))
    except UnicodeDecodeError:
        return _Found(stamp, None, f"{path}: is not UTF-8 text", 0)
    except PolicyError as error:
        return _Found(stamp, None, f"{folder}/{error}" if error.path.startswith(name) else f"{path}: {error}", 0)
    except FileError as error:
        return _Found(stamp, None, str(error), 0)


def _resolve(folder: str, name: str) -> str | None:
    """Where a file of a mounted ConfigMap really lies; None for everything else."""
    try:
        path = os.path.join(folder, name)
        if not stat.S_ISLNK(os.lstat(path).st_mode) or os.readlink(path) != f"..data/{name}":
            return None
        data = os.readlink(os.path.join(folder, "..data"))
    except OSError:
        return None
    if "/" in data or not data.startswith("..") or data == "..":
        return None
    return os.path.join(folder, data, name)
