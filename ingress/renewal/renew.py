"""Renew intents: Redis is told which sandboxes are in use, so that their owner renews them.

A request only leaves a note; one task a worker takes the notes to Redis, several in one exchange. Redis may be slow,
hung or gone: requests and start-up don't wait for it, what can't be sent is kept for four minutes and then counted as
failed, what doesn't fit is counted as dropped, and `health` says what is wrong. An intent may arrive twice, where a
connection breaks between a push and its answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ingress.renewal.intents import Claims, Intents

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingress.renewal.intents import Intent
    from ingress.telemetry.stats import Stats

BATCH = 128
EXCHANGE = 2.0
"""Seconds for connecting, and for each answer."""
FLUSH = 1.0
"""Seconds that `close` takes at most for what still waits."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_MOST_SAID = 200
# What the URL may say to other clients, and what is decided here.
_IGNORED = frozenset((
    "client_name", "protocol", "max_retries", "min_retry_backoff", "max_retry_backoff", "dial_timeout", "read_timeout",
    "write_timeout", "pool_fifo", "pool_size", "pool_timeout", "min_idle_conns", "max_idle_conns", "max_active_conns",
    "conn_max_idle_time", "conn_max_lifetime", "idle_timeout", "idle_check_frequency", "max_conn_age",
))  # fmt: skip
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


class Dsn(NamedTuple):
    """Where Redis is."""

    host: str
    port: int
    path: str
    """Of a unix socket; "": TCP."""
    db: int
    username: str
    password: str
    tls: dict[str, str]
    """Empty: none. `verify` is yes or no, the others are files."""

    def __str__(self) -> str:
        """Without name and password."""
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"


def check_dsn(text: str) -> Dsn:
    """Read a Redis URL. ValueError says what is wrong with it, and never repeats it: it may hold a password."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise ValueError("its port is not a number from 1 to 65535; a `/` or `#` in a password is %2F or %23") from None
    if parts.scheme not in ("redis", "rediss", "unix") or "://" not in text:
        raise ValueError("begin with redis://, rediss:// (TLS) or unix:// (a socket's path)")
    host = unquote(parts.hostname or "")
    if parts.fragment or port == 0 or not host.isprintable() or " " in host:
        raise ValueError("write redis://[user:password@]host[:port][/database]; a `#` in a password is %23")
    options = _options(parts.query)
    path = unquote(parts.path)
    if parts.scheme == "unix":
        if host or not path.startswith("/") or len(path) < 2:
            raise ValueError("write unix:///path/to/the.sock[?db=1], with three slashes")
        database = options.pop("db", "0")
    else:
        database = options.pop("db", path.strip("/") or "0")
        if path.strip("/") and path.strip("/") != database:
            raise ValueError("two databases, one in the path and one in the query")
        path = ""
    if not database.isascii() or not database.isdigit() or len(database) > 9:
        raise ValueError("the database is a number, as in redis://host:6379/0")
    verify = options.pop("skip_verify", "false").lower() not in ("1", "t", "true")
    tls = {"verify": "yes" if verify else "no", **options} if parts.scheme == "rediss" else {}
    if options and not tls:
        raise ValueError(f"{', '.join(sorted(options))}: only with rediss://")
    return Dsn(
        host or "localhost",
        port or 6379,
        path,
        int(database),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        tls,
    )


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _IGNORED:
            continue
        if name not in ("db", "skip_verify", *_FILES):
            raise ValueError(f"unknown parameter {name!r}; there are db, skip_verify, {', '.join(_FILES)}")
        if name in options or not value:
            raise ValueError(f"{name} is empty or there twice")
        options[name] = value
    return options


class RenewSettings(NamedTuple):
    """What the operator chose."""

    dsn: Dsn
    key: str = "opensandbox:renew:intent"
    max_len: int = 0
    """The list's cap; 0: none."""
    interval: float = 60.0
    """Seconds between two intents of a sandbox, over all workers where they share their claims."""


class Renewer:
    """Takes notes and sends them. Made anywhere; `start` and `close` inside the running loop, `note` in its thread.

    say: where its log lines go, a level and a sentence. claims: shared with the other workers; None: each for itself.
    """

    def __init__(
        self,
        settings: RenewSettings,
        stats: Stats,
        say: Callable[[str, str], None],
        claims: Claims | None = None,
    ) -> None:
        import_module("redis.asyncio")  # half a second: now, and not while requests wait
        self._settings = settings
        self._stats = stats
        self._say = say
        self._intents = Intents(settings.interval, claims)
        self._trouble = ""
        self._work = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, sandbox: str, port: int, request_uri: str) -> None:
        """This sandbox is in use now. Never waits and never fails."""
        now = time.monotonic()
        if now >= self._intents.quiet.get(sandbox, 0.0):
            self._take_note(sandbox, port, request_uri, now)

    def _take_note(self, sandbox: str, port: int, request_uri: str, now: float) -> None:
        if self._closing.is_set():
            return
        if self._intents.offer(sandbox, port, request_uri, now, time.time_ns()):
            self._work.set()
        else:
            self._stats.renewals_dropped += 1

    def health(self) -> str:
        """What is wrong with Redis, in words; "": nothing. At once, from memory."""
        return self._trouble

    def start(self) -> None:
        """Begin to send. Redis is asked at once whether it is there; nobody waits for the answer."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what still waits, for a second at most; what remains is counted as dropped."""
        self._closing.set()
        self._work.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=FLUSH)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=FLUSH / 4)
            self._task = None
        self._stats.renewals_dropped += len(self._intents)

    async def _run(self) -> None:
        redis: Any = None
        pause = _FIRST_PAUSE
        asked = False  # whether Redis has answered since it last did not
        try:
            while not (self._closing.is_set() and not self._intents.waiting):
                if asked and not self._intents.waiting:
                    self._work.clear()
                    await self._work.wait()
                    continue
                taken = self._intents.take(BATCH)
                try:
                    if redis is None:
                        redis = _client(self._settings.dsn)
                    await self._exchange(redis, taken)
                except asyncio.CancelledError:
                    self._intents.put_back(taken, 0.0)
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the sending for good
                    self._stats.renewals_failed += self._intents.put_back(taken, time.monotonic())
                    self._say_trouble(error)
                    client, redis, asked = redis, None, False  # an answer may still be on its way there
                    await _discard(client)
                    if self._closing.is_set():
                        return
                    await self._rest(pause * (0.75 + random.random() / 2))  # noqa: S311 - against marching in step
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._intents.sent()
                    self._stats.renewals_sent += len(taken)
                    pause, asked = _FIRST_PAUSE, True
                    self._say_well()
        finally:
            await _discard(redis)

    async def _exchange(self, redis: Any, intents: list[Intent]) -> None:
        settings = self._settings
        async with asyncio.timeout(3 * EXCHANGE):
            if not intents:
                await redis.ping()
                return
            async with redis.pipeline(transaction=False) as pipeline:
                pipeline.lpush(settings.key, *[intent.payload() for intent in intents])
                if settings.max_len > 0:
                    pipeline.ltrim(settings.key, 0, settings.max_len - 1)
                await pipeline.execute()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass

    def _say_trouble(self, error: Exception) -> None:
        words = str(error)[:_MOST_SAID] or type(error).__name__
        if isinstance(error, TimeoutError):
            words = "it does not answer in time"
        if not self._trouble:
            self._say("warn", f"renew intents are not sent: Redis at {self._settings.dsn}: {words}")
        self._trouble = f"Redis at {self._settings.dsn}: {words}"

    def _say_well(self) -> None:
        if self._trouble:
            self._trouble = ""
            self._say("info", f"renew intents are sent again to {self._settings.dsn}")


def _client(dsn: Dsn) -> Any:
    """A client of one connection, which is made when it is first used."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {name: value for name, value in dsn.tls.items() if name in _FILES}
    if dsn.tls:
        options["ssl"] = True
        if dsn.tls["verify"] == "no":
            options.update(ssl_cert_reqs="none", ssl_check_hostname=False)
    return Redis(
        host=dsn.host,
        port=dsn.port,
        unix_socket_path=dsn.path or None,
        db=dsn.db,
        username=dsn.username or None,
        password=dsn.password or None,
        socket_timeout=EXCHANGE,
        socket_connect_timeout=EXCHANGE,
        retry=Retry(NoBackoff(), 0),  # trying again is for whoever counts
        protocol=2,  # older servers and proxies know no other
        **options,
    )


async def _discard(redis: Any) -> None:
    if redis is None:
        return
    try:
        async with asyncio.timeout(FLUSH):
            await redis.aclose()
    except Exception:  # noqa: BLE001, S110 - it was broken already
        pass
