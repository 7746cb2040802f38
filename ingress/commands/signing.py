"""What `ingress sign` and `ingress verify` share: where keys come from, when things expire, how a command ends."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from ingress.admission.access import BadKeys, KeyRing
from ingress.settings.flags import ConfigError, duration, safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEYS = "OPENSANDBOX_SECURE_ACCESS_KEYS"
ACTIVE = "OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY"
_UNIX = 1_000_000_000
"""Plain numbers from here on (2001) are Unix times, below it seconds from now."""
_LAST = 253_402_300_799
"""The end of the year 9999, the last that a date can be shown for."""


class CommandError(Exception):
    """The command can't do what was asked: one line; exit code 2."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line and a hint."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--key", metavar="a=BASE64", action="append", default=[], help="a key; may be given again")
        self.add_argument("--keys-file", metavar="FILE", default="", help="keys in a file, one a line or with commas")

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see {self.prog} --help")


def run(name: str, work: Callable[[], tuple[int, str, list[str]]]) -> int:
    """Do a command's work (exit code, text, remarks), write its outcome, and return the exit code."""
    try:
        code, text, remarks = work()
    except (CommandError, ConfigError, BadKeys) as error:
        code, text, remarks = 2, "", [str(error)]
    except SystemExit as left:  # --help: argparse has printed it
        return left.code if isinstance(left.code, int) else 2
    for remark in remarks:
        print(f"ingress {name}: {remark}", file=sys.stderr)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # the interpreter would try once more, and say so
        print(f"ingress {name}: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2
    return code


def find_keys(options: argparse.Namespace, environ: Mapping[str, str]) -> KeyRing:
    """The keys of the flags, else of the environment; an empty ring where there are none."""
    if options.key and options.keys_file:
        raise CommandError("--key and --keys-file exclude each other; put every key in the file")
    if options.keys_file:
        try:
            with open(options.keys_file, encoding="utf-8") as file:
                text = file.read(1 << 20)
        except UnicodeDecodeError:
            raise CommandError(f"{safe(options.keys_file)}: not text; write a=BASE64 on a line for each key") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no file has such a name"
            raise CommandError(f"{safe(options.keys_file)}: {reason}") from None
        return _named(safe(options.keys_file), text)
    if options.key:
        return _named("--key", ",".join(options.key))
    text = environ.get(KEYS, "")
    return _named(KEYS, text) if text.strip() else KeyRing()


def _named(where: str, text: str) -> KeyRing:
    try:
        return KeyRing.parse(text)
    except BadKeys as fault:
        raise BadKeys(f"{where}: {fault}") from None


def read_expiry(text: str, now: float) -> int:
    """Unix seconds out of `1h` (from now), an RFC 3339 time or a Unix time. CommandError for the past."""
    if re.fullmatch(r"[0-9]{10,12}", text) and int(text) >= _UNIX:
        until = int(text)
    elif re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        try:
            moment = datetime.fromisoformat(text.upper())
        except ValueError:
            raise CommandError(f"--expires: '{safe(text)}' is no time; write 2030-01-31T12:00:00Z") from None
        if moment.tzinfo is None:
            raise CommandError(f"--expires: '{safe(text)}' has no zone; write {safe(text)}Z for UTC")
        until = int(moment.timestamp())
    else:
        until = int(now + duration("--expires", text, 1, 36_500 * 86_400))
    if until <= now:
        raise CommandError(f"--expires: {shown(until)} has passed")
    if until > _LAST:
        raise CommandError("--expires: that is after the year 9999")
    return until


def shown(seconds: int) -> str:
    """A Unix time as people write it, in UTC."""
    if seconds > _LAST:
        return "after the year 9999"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """How long, roughly: `59 minutes`, `3 days`."""
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count = int(seconds // size)
        if count >= 2 or (size == 1):
            return f"{count} {word}{'' if count == 1 else 's'}"
    return ""
