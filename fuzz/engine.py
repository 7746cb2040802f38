"""One target in this process, under atheris: `python -m fuzz.engine TARGET CORPUS LIBFUZZER-OPTION...`

The code under test is instrumented as it is imported, so nothing of it may have been imported before; the targets and
what they compare with are not, or the comparison would be taken for the code's own paths.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import atheris

from fuzz.running import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INSTRUMENTED = ["policies", "egress", "ingress", "h11", "tests.pure.fuzz.planted"]
_BEAT = 2.0  # seconds between two words about it
_LOOK = 256  # executions between two looks at the clock


class Target(Protocol):
    """A module of `fuzz/targets`."""

    LONGEST: int
    WORDS: tuple[bytes, ...]

    def check(self, data: bytes) -> None: ...
    def seeds(self) -> Iterable[bytes]: ...


def load(name: str) -> Target:
    """The target's module, with the code under test instrumented. A name with a dot is any module's."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        return cast("Target", importlib.import_module(name if "." in name else f"fuzz.targets.{name}"))


def furnish(target: Target, corpus: Path) -> list[str]:
    """Write seeds and dictionary where libFuzzer finds them; its options for that."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    length = f"-max_len={target.LONGEST}"
    if not target.WORDS:
        return [length]
    words = corpus.with_name(corpus.name + ".dict")
    words.write_text("".join('"' + "".join(f"\\x{octet:02x}" for octet in word) + '"\n' for word in target.WORDS))
    return [length, f"-dict={words}"]


def counted(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """`check`, saying now and then how often it was called: libFuzzer itself speaks only when it finds a new path."""
    count = 0
    said = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal count, said
        count += 1
        if not count % _LOOK and time.monotonic() - said > _BEAT:
            said = time.monotonic()
            print(f"{PROGRESS}{count}", file=sys.stderr, flush=True)
        check(data)

    return one


def main(name: str, corpus: str, *options: str) -> None:
    """Does not return: libFuzzer ends the process."""
    warnings.simplefilter("error")
    target = load(name)
    more = furnish(target, Path(corpus))
    inputs = [] if any(not option.startswith("-") for option in options) else [corpus]  # else these alone are run
    atheris.Setup([f"fuzz {name}", *more, *options, *inputs], counted(target.check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
