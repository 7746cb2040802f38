"""What happens in the master before anything listens, and is shared by all workers.

prepare   what lies in files is read and checked, and what the workers need is imported once for all of them
shared    memory that all workers, and a successor, count in
"""

from __future__ import annotations

import asyncio
import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ingress.admission.access import BadKeys, KeyRing
from ingress.admission.throttle import Throttle
from ingress.process.listeners import StartError
from ingress.providers import ProviderError, build
from ingress.routes import Routes
from ingress.settings.flags import ConfigError
from ingress.telemetry.log import Log
from ingress.telemetry.metrics import Board

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingress.process.tls import Certificate
    from ingress.renewal.intents import Claims
    from ingress.renewal.renew import RenewSettings
    from ingress.settings.config import Config

_LARGEST_KEYS = 1 << 20


class Plan(NamedTuple):
    """What the workers start from."""

    config: Config
    keys: KeyRing
    certificate: Certificate | None
    renewal: RenewSettings | None
    log: Log
    began: float  # Unix time


class Shared(NamedTuple):
    """Memory that all workers share."""

    throttle: Throttle
    board: Board
    bells: tuple[int, ...]  # eventfds, one for each worker: see telemetry/rally.py
    claims: Claims | None


def prepare(config: Config) -> Plan:
    """Read what lies in files. ConfigError or StartError, one line, where something can't be used."""
    log = Log(level=config.log_level)
    keys = read_keys(config)
    if keys.short:
        log.warn(f"keys {', '.join(keys.short)} are short enough to be searched offline; use 32 random octets")
    certificate = None
    if config.tls_cert:
        from ingress.process.tls import Certificate

        certificate = Certificate(config.tls_cert, config.tls_key)
    import_module("ingress.app")
    asyncio.run(_try_provider(config))
    return Plan(config, keys, certificate, _renewal(config), log, time.time())


async def _try_provider(config: Config) -> None:
    """Make one and throw it away: its settings are checked, and what it is made of is imported once for all workers."""
    try:
        await build(config.provider_type, config.provider, Routes(), lambda *_: None).close()
    except ProviderError as error:
        raise StartError(f"--provider-type {config.provider_type}: {error}") from None


def _renewal(config: Config) -> RenewSettings | None:
    if not config.renew_enabled:
        return None
    import_module("redis.asyncio")  # half a second of a worker's time otherwise
    from ingress.renewal.renew import RenewSettings, check_dsn

    try:
        dsn = check_dsn(config.renew_dsn)
    except ValueError as error:
        raise ConfigError("--renew-intent-redis-dsn", str(error)) from None
    return RenewSettings(dsn, config.renew_key, config.renew_max_len, config.renew_interval)


def read_keys(config: Config) -> KeyRing:
    """The keys as flag or file has them now; none without either. ConfigError where they can't be read."""
    if not config.secure_access_keys_file:
        if not config.secure_access_keys:
            return KeyRing()
        try:
            return KeyRing.parse(config.secure_access_keys)
        except BadKeys as error:
            raise ConfigError(config.secure_access_keys_from, str(error)) from None
    path = config.secure_access_keys_file
    try:
        with open(path, encoding="utf-8") as file:
            return KeyRing.parse(file.read(_LARGEST_KEYS))
    except OSError as error:
        raise ConfigError("--secure-access-keys-file", f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError("--secure-access-keys-file", f"{path}: is not text; write ID=BASE64 lines") from None
    except BadKeys as error:
        raise ConfigError("--secure-access-keys-file", f"{path}: {error}") from None


def shared(plan: Plan, workers: int, handed: Mapping[str, tuple[int, bytes]]) -> Shared:
    """The workers' memory; what a predecessor handed over is gone on with, where it has our shape."""
    descriptor, key = handed.get("throttle", (-1, None))
    claims = None
    if plan.renewal is not None:
        from ingress.renewal.intents import Claims

        claims = Claims()
    bells = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(workers))
    return Shared(Throttle(key, descriptor), Board(workers), bells, claims)


def to_hand(memory: Shared) -> dict[str, tuple[int, bytes]]:
    """The part of it that a successor goes on with."""
    return {"throttle": memory.throttle.handed()}


def stamp(path: str) -> tuple[int, int, int, int] | None:
    """What changes when a file does."""
    if not path:
        return None
    try:
        about = os.stat(path)
    except OSError:
        return None
    return (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)
