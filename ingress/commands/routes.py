"""`ingress routes`: what the provider knows, and what keeps a sandbox from being reached."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from ingress.admission.targets import Targets
from ingress.providers import ProviderError, build
from ingress.routes import Ambiguous, Routes
from ingress.settings.config import ConfigError, from_args
from policies.address import AddressError, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingress.providers.base import Health, Provider
    from ingress.routes import Entry
    from ingress.settings.config import Config

HELP = """\
usage: ingress routes [--json] [--watch] [FLAG ...]

List the sandboxes that a gateway with these flags would know: where each is, on which ports, whether it is ready and
whether it asks for access. Tokens are never shown. Takes the flags and variables of `ingress serve`.

  --json      one JSON object; with --watch one a line for each change
  --watch     go on, and print each change, until interrupted

examples:
  ingress routes --routes routes.yaml
  ingress routes --provider-type docker --watch
  ingress routes --provider-type batchsandbox --json | jq '.sandboxes[] | select(.ready|not)'

exit code: 0 the provider answers, 1 it does not, or what it says can't be used, 2 a flag is wrong.
"""
PATIENCE, SOON = 10.0, 2.0
"""Seconds to wait for the provider's first word: at most, and where it says that something is wrong."""


class Row(NamedTuple):
    """One id as it is shown."""

    id: str
    address: str
    ports: tuple[int, ...] | None
    ready: bool
    why: str
    access: bool

    def cells(self) -> tuple[str, ...]:
        """For people."""
        ports = "any" if self.ports is None else ",".join(map(str, self.ports)) or "none"
        state = "ready" if self.ready else f"no: {self.why}"
        return self.id, self.address or "-", ports, "token" if self.access else "open", state

    def document(self) -> dict[str, object]:
        """For programs."""
        return {
            "id": self.id,
            "address": self.address or None,
            "ports": None if self.ports is None else list(self.ports),
            "ready": self.ready,
            "reason": self.why or None,
            "access": self.access,
        }


def row(entry: Entry, shut: Callable[[str], str]) -> Row:
    """An entry as it is shown. shut: why a literal address may not be dialled, "" where it may."""
    if isinstance(entry, Ambiguous):
        access = any(sandbox.token for sandbox in entry.choices)
        return Row(entry.id, "", None, ready=False, why=f"ambiguous, it is in {', '.join(entry.where)}", access=access)
    ports = None if entry.ports is None else tuple(sorted(entry.ports))
    address = entry.host
    if entry.port_map:
        address = ",".join(f"{port}={host}:{there}" for port, host, there in entry.port_map)
    why = "" if entry.ready else entry.reason or "its provider says so"
    if not why and (barred := shut(entry.host)):
        why = f"{entry.host} is {barred}; --allow-target {entry.host} opens it"
    return Row(entry.id, address, ports, ready=not why, why=why, access=bool(entry.token))


def table(rows: list[Row], health: Health) -> str:
    """Everything, for people; what came from outside is written so that a terminal can show it."""
    lines = [f"source: {health.source}"]
    if health.degraded:
        lines.append(f"wrong:  {health.degraded}")
    cells = [("ID", "ADDRESS", "PORTS", "ACCESS", "READY"), *(each.cells() for each in rows)]
    if rows:
        widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
        for cell in cells:
            left = "  ".join(text.ljust(width) for text, width in zip(cell[:4], widths, strict=True))
            lines.append(f"{left}  {cell[4]}")
    else:
        lines.append("no sandboxes")
    return "".join(f"{_plain(line)}\n" for line in lines)


def document(rows: list[Row], health: Health) -> str:
    """Everything, for programs."""
    return (
        json.dumps(
            {
                "source": health.source,
                "loaded": health.loaded,
                "degraded": health.degraded or None,
                "sandboxes": [each.document() for each in rows],
            }
        )
        + "\n"
    )


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def main(argv: list[str]) -> int:
    """List them; returns the exit code."""
    if any(word in ("-h", "--help", "-help") for word in argv):
        sys.stdout.write(HELP)
        return 0
    try:
        return run(argv, os.environ)
    except (ConfigError, ProviderError) as error:
        print(f"ingress routes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """As `main`. Raises ConfigError, ProviderError, BrokenPipeError."""
    own = {word: f"--{name}" for name in ("json", "watch") for word in (f"--{name}", f"-{name}")}
    asked = {own[word] for word in argv if word in own}
    config = from_args([word for word in argv if word not in own], environ)
    return asyncio.run(_show(config, as_json="--json" in asked, watch="--watch" in asked))


async def _show(config: Config, *, as_json: bool, watch: bool) -> int:
    targets = Targets(config.allow_target)

    def shut(host: str) -> str:
        try:
            return targets.why_not(parse_address(host), 0)
        except AddressError:
            return ""  # a name: what it resolves to is checked when it is dialled

    def say(level: str, words: str) -> None:
        if watch and level in ("warn", "error"):
            print(f"ingress routes: {_plain(words)}", file=sys.stderr)

    routes = Routes()
    provider = build(config.provider_type, config.provider, routes, say)
    task = asyncio.create_task(provider.run())
    try:
        await _loaded(provider, task)
        health = provider.health()
        rows = [row(entry, shut) for entry in routes.entries()]
        sys.stdout.write(document(rows, health) if as_json else table(rows, health))
        sys.stdout.flush()
        if watch:
            await _watch(routes, task, shut, as_json=as_json)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await provider.close()
    return 0 if health.loaded and not health.degraded else 1


async def _loaded(provider: Provider, task: asyncio.Task[None]) -> None:
    """Until the provider has read everything once, or it is no use to wait on."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not provider.health().loaded and not task.done():
        if loop.time() - begun > (SOON if provider.health().degraded else PATIENCE):
            return
        await asyncio.sleep(0.02)


async def _watch(routes: Routes, task: asyncio.Task[None], shut: Callable[[str], str], *, as_json: bool) -> None:
    """Print each change until cancelled."""
    changes: asyncio.Queue[tuple[str, Entry | None]] = asyncio.Queue()
    routes.watch(lambda sandbox_id, _, entry: changes.put_nowait((sandbox_id, entry)))
    while not task.done():
        sandbox_id, entry = await changes.get()
        now = None if entry is None else row(entry, shut)
        if as_json:
            change = {"id": sandbox_id, "sandbox": None if now is None else now.document()}
            sys.stdout.write(json.dumps(change) + "\n")
        else:
            words = f"- {sandbox_id}" if now is None else "  ".join(("+", *now.cells()))
            sys.stdout.write(_plain(words) + "\n")
        sys.stdout.flush()
