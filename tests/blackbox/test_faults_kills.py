"""Killed at any instant: never open, no accepted policy lost, no half of a change (E12).

SIGKILL comes at random moments of what the sidecar does all day: policies are written, answers taught and renewed, as
fast as it goes. Ordinarily some sixty times; `make kills N=500` for more. The seed is printed, SALLYPORT_SEED repeats.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import random
import threading
import time
from typing import Any, NamedTuple, Self

import pytest

from lab import Lab, Sidecar
from lab.client import NoReply
from tests.blackbox.place import REJECTED, allow, soon
from tests.blackbox.prober import FORBIDDEN, Prober

KILLS = int(os.environ.get("SALLYPORT_KILLS", "60"))
SEED = int(os.environ.get("SALLYPORT_SEED", str(random.SystemRandom().randrange(1 << 32))))
FIRST_STARTS = max(4, KILLS // 10)  # in a namespace where nothing stands yet
STARTS = max(4, KILLS // 5)  # over the rules of an earlier life
WORKERS = 4  # of one supervisor's; the pause before the next grows with each
FILE = {"POLICY_FILE": "/var/egress/policy.json"}
NAMED = "198.51.100.10"


def numbered(number: int) -> dict[str, Any]:
    """The n-th policy: it opens one address of its own."""
    return allow("api.example.com", "*.taught.example.com", address(number))


def address(number: int) -> str:
    return f"198.18.{number >> 8 & 255}.{number & 255}"


class Word(NamedTuple):
    """What is known of the policies written so far."""

    accepted: int  # the last that was answered with 200
    sent: int  # the last that was sent


class Writer:
    """Sends one policy after the other, over a connection each, whatever happens to the other end."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self.accepted = self.sent = 0
        self.refused: list[str] = []
        self._go = threading.Event()
        self._idle = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended:
            if not self._go.is_set():
                self._idle.set()
                self._go.wait()
                continue
            self.sent += 1
            # Its end is not known, or it was never heard. Who hung up before the next worker is there would be heard
            # later, when it is known already what holds.
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = self._sidecar.api("POST", "/policy", numbered(self.sent), timeout=60)
                if answer.status == 200:
                    self.accepted = self.sent
                else:
                    self.refused.append(answer.text)
                continue
            time.sleep(0.002)

    def beyond(self, count: int) -> bool:
        return self.accepted > count

    def resume(self) -> None:
        self._idle.clear()
        self._go.set()

    def pause(self) -> Word:
        """After the request that is on its way."""
        self._go.clear()
        assert self._idle.wait(90)
        return Word(self.accepted, self.sent)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._go.set()
        self._thread.join()


class Asker:
    """Looks names up, new ones and known ones: each answer writes and renews set elements."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.answered = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            for name in ("api.example.com", f"n{number % 500}.taught.example.com"):
                with contextlib.suppress(NoReply, OSError):
                    self.answered += bool(self._lab.query(name, timeout=0.5).addresses)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def world(lab: Lab) -> Lab:
    lab.dns.a("api.example.com", NAMED, ttl=0)
    lab.dns.generate("taught.example.com", "198.51.101.0/24", ttl=0)
    lab.dns.set_logging(False)
    return lab


@pytest.mark.timeout(60 + 4 * KILLS)
def test_e12_killed_while_policies_are_written_and_leases_renewed(
    world: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    kills = {"worker": 0, "supervisor": 0}
    sidecar = Sidecar(world, policy=numbered(0), env=FILE, as_pid1=True)
    with sidecar, Prober(world) as prober, Asker(world) as asker, Writer(sidecar) as writer:
        while sum(kills.values()) < KILLS - FIRST_STARTS - STARTS:
            for number in range(WORKERS + 1):
                before = writer.accepted
                writer.resume()
                if number % 2:  # however slow the machine, some of it has work behind it
                    assert soon(functools.partial(writer.beyond, before))
                time.sleep(chance.random() * (0.08 if chance.random() < 0.8 else 0.3))
                if number < WORKERS:
                    sidecar.kill_worker()
                    kills["worker"] += 1
                    word = writer.pause()
                    sidecar.wait_ready()
                else:
                    sidecar.kill()
                    kills["supervisor"] += 1
                    word = writer.pause()
                    sidecar.restart()
                check(world, sidecar, word, before)
        assert not writer.refused
        assert writer.accepted > KILLS // 4, "it was killed while it was at work"
    told(
        capsys,
        f"{kills['worker']} workers and {kills['supervisor']} supervisors killed, {writer.accepted} policies accepted, "
        f"{asker.answered} look-ups answered, {prober.tries} knocks ({prober.heard})",
    )
    assert prober.openings == []
    assert prober.tries > 10 * KILLS


def check(world: Lab, sidecar: Sidecar, word: Word, before: int) -> None:
    """What holds now is the last accepted policy or one sent after it, whole: in the API, the file and the kernel."""
    now = sidecar.api("GET", "/policy").json()["policy"]
    candidates = {json.dumps(numbered(number)): number for number in range(word.accepted, word.sent + 1)}
    found = candidates.get(json.dumps(now))
    assert found is not None, f"accepted {word.accepted} (before the kill {before}), sent {word.sent}, found {now}"
    file = sidecar.state / "policy.json"
    if found or file.exists():
        assert json.loads(file.read_text()) == now
    assert world.connect(address(found), 80) == "connected"
    for other in {word.accepted, word.sent, word.sent + 1} - {found}:
        assert world.connect(address(other), 80) in REJECTED, (word, found, other)
    assert world.query("api.example.com").addresses == [NAMED]
    assert world.connect(NAMED, 80) == "connected"


@pytest.mark.timeout(60 + 4 * KILLS)
def test_e12_killed_while_it_starts_over_the_rules_of_an_earlier_life(
    world: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED + 1)
    with Sidecar(world, policy=numbered(0), env=FILE, as_pid1=True) as sidecar:
        assert sidecar.api("POST", "/policy", numbered(7)).status == 200
        assert world.query("api.example.com").addresses == [NAMED]
        sidecar._wait = False
        with Prober(world) as prober, Asker(world):
            for _ in range(STARTS):
                assert soon(lambda: sidecar.is_there)
                sidecar.kill()
                sidecar.restart()
                time.sleep(chance.random() * 0.25)
            sidecar.wait_ready()
        check(world, sidecar, Word(7, 7), 7)
    told(capsys, f"{STARTS} starts killed, {prober.tries} knocks ({prober.heard})")
    assert prober.openings == []


@pytest.mark.timeout(60 + 4 * KILLS)
def test_e12_killed_while_it_starts_for_the_first_time(world: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first refusal on everything is refused; before it nothing stood, and the runtime starts nobody."""
    chance = random.Random(SEED + 2)
    locked = 0
    for start in range(FIRST_STARTS):
        world.unguard()
        with Sidecar(world, policy=numbered(0), env=FILE, as_pid1=True, wait=False) as sidecar:
            assert soon(lambda: sidecar.is_there)
            with watched(world) as outcomes:
                time.sleep(chance.random() * 0.2)
                if not locked and start == FIRST_STARTS - 1:  # however slow the machine, one is killed behind it
                    assert soon(lambda: outcomes and outcomes[-1] in REJECTED)
                sidecar.kill()
                time.sleep(0.02)
            closed = next((at for at, outcome in enumerate(outcomes) if outcome != "connected"), len(outcomes))
            assert "connected" not in outcomes[closed:], outcomes
            locked += closed < len(outcomes)
    told(capsys, f"{FIRST_STARTS} first starts killed, {locked} of them after the lock-down")
    assert locked


@contextlib.contextmanager
def watched(world: Lab) -> Any:
    outcomes: list[str] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            outcomes.append(world.connect(FORBIDDEN[0], 80, timeout=0.3))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        thread.join()


def told(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Said where a person looks on; the ordinary run stays quiet."""
    if "SALLYPORT_KILLS" in os.environ:
        with capsys.disabled():
            print(f"\n{line}; SALLYPORT_SEED={SEED}")
