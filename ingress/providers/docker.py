"""Sandboxes that are Docker containers: listed once, then looked at whenever the daemon says that something happened.

The event stream is opened before the list is read, so that nothing falls between the two.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import aiohttp

from ingress.providers.containers import LABELS, Container, Wishes, entries, read, wanted
from ingress.providers.fields import FieldError
from ingress.providers.fields import host as checked_host
from ingress.providers.kubeobjects import mapping, text
from ingress.providers.lines import Garbage, Lines
from ingress.providers.standing import Backoff, Standing

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from ingress.providers.base import Health, Say
    from ingress.routes import Routes

DEFAULT_HOST = "unix:///var/run/docker.sock"
ANSWER = 15.0
"""Seconds for one answer of the daemon."""
RESYNC = 300.0
"""Seconds after which everything is looked at again, whatever the events said."""
_AT_ONCE = 8  # containers looked at at the same time
_LARGEST = 64 * 1024 * 1024  # bytes of one answer


class DockerFault(Exception):
    """The daemon can't be used just now; the text says why, for people."""


class DockerHostError(ValueError):
    """A daemon's address that can't be used; one line."""


def base_of(host: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The socket's path, or "", and the base URL for `unix://…`, `tcp://host:port`. Raises DockerHostError."""
    if host.startswith("unix://"):
        path = host.removeprefix("unix://")
        if not path.startswith("/"):
            raise DockerHostError(f"{host!r}: a socket's path is absolute, such as {DEFAULT_HOST}")
        return path, "http://docker"
    try:
        parts = urlsplit(host)
        name, port = parts.hostname or "", parts.port
    except ValueError:
        name, port = "", None
        parts = urlsplit("")
    if parts.scheme not in ("tcp", "http", "https") or not name:
        raise DockerHostError(f"{host!r}: not a daemon's address; write {DEFAULT_HOST} or tcp://host:2375")
    try:
        name = checked_host(name)
    except FieldError as error:
        raise DockerHostError(f"{host!r}: {error}") from None
    secure = parts.scheme == "https" or bool(environ.get("DOCKER_TLS_VERIFY"))
    name = f"[{name}]" if ":" in name else name
    return "", f"{'https' if secure else 'http'}://{name}:{port or (2376 if secure else 2375)}"


def _tls(base: str, environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """As the `docker` command: ca.pem, cert.pem and key.pem in DOCKER_CERT_PATH. Raises DockerFault."""
    if not base.startswith("https:"):
        return None
    import ssl

    folder = environ.get("DOCKER_CERT_PATH") or os.path.expanduser("~/.docker")
    try:
        context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        if os.path.exists(os.path.join(folder, "cert.pem")):
            context.load_cert_chain(os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem"))
    except OSError as error:
        raise DockerFault(f"the certificates in {folder} can't be used: {error.strerror or error}") from None
    return context


class DockerProvider:
    """Follows one daemon. Raises DockerHostError where `host` is no address."""

    def __init__(
        self, host: str, wishes: Wishes, routes: Routes, say: Say, *, keep: float = 0.0, environ: Mapping[str, str]
    ) -> None:
        self._socket, self._base = base_of(host, environ)
        self._environ = environ
        self._wishes = wishes
        self._routes = routes
        self._say = say
        self._containers: dict[str, Container] = {}
        self._complained: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._backoff = Backoff()
        how = f", ports published on {wishes.published}" if wishes.published else ""
        how = f", network {wishes.network}" if wishes.network and not how else how
        self._standing = Standing(say, f"{host}{how}", keep, routes.__len__)

    def health(self) -> Health:
        """Loaded when the containers were read once."""
        return self._standing.health()

    async def run(self) -> None:
        """Follow the daemon until cancelled."""
        try:
            while True:
                try:
                    await self._follow()
                except (DockerFault, Garbage) as error:
                    if self._standing.bad(str(error)):
                        self._containers.clear()
                        self._routes.replace(())
                await self.close()
                await asyncio.sleep(self._backoff.delay())
        finally:
            await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _follow(self) -> None:
        """Read everything, then follow the events, until the stream ends. Raises DockerFault or Garbage."""
        context = _tls(self._base, self._environ)
        connector = (
            aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector(ssl=context or True, limit=16)
        )
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
        )
        try:
            async with asyncio.timeout(ANSWER):
                events = await self._session.get(
                    f"{self._base}/events",
                    params={"filters": json.dumps({"type": ["container", "network"]})},
                    allow_redirects=False,
                )
            async with events:
                if events.status != 200:
                    raise DockerFault(await _refused(events))
                await self._resync()
                self._backoff.reset()
                self._standing.good()
                await self._listen(events)
        except TimeoutError:
            raise DockerFault(f"no answer within {ANSWER:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise DockerFault(_words(error)) from None
        raise DockerFault("the daemon ended its stream of events")

    async def _listen(self, events: aiohttp.ClientResponse) -> None:
        """Look at whatever an event names."""
        lines = Lines()
        loop = asyncio.get_running_loop()
        again = loop.time() + RESYNC
        pending: asyncio.Task[bytes] | None = None
        try:
            while True:
                if pending is None:
                    pending = asyncio.ensure_future(events.content.readany())
                done, _ = await asyncio.wait({pending}, timeout=max(again - loop.time(), 0.0))
                if not done:
                    again = loop.time() + RESYNC
                    await self._resync()
                    continue
                data = pending.result()
                pending = None
                if not data:
                    return
                touched = {identity for event in lines.feed(data) if (identity := self._touched(event))}
                if touched:
                    await self._inspect(touched)
                    self._show()
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)

    def _touched(self, event: dict[str, object]) -> str:
        """The container that an event is about, "" where it is none of ours."""
        actor = mapping(event.get("Actor"))
        attributes = mapping(actor.get("Attributes"))
        if event.get("Type") == "network":
            identity = text(attributes.get("container"))
            return identity if identity in self._containers else ""
        identity = text(actor.get("ID"))
        if text(event.get("Action")).startswith("exec_"):
            return ""  # health checks and shells: many, and nothing changes by them
        known = identity in self._containers or any(label in attributes for label in LABELS)
        return identity if known else ""

    async def _resync(self) -> None:
        """Read every container that may matter."""
        found: set[str] = set()
        for label in LABELS:
            query = {"all": "1", "filters": json.dumps({"label": [label]})}
            listed = await self._call("/containers/json", query)
            if not isinstance(listed, list):
                raise DockerFault("the daemon's answer is no list of containers")
            found |= {text(mapping(each).get("Id")) for each in listed}
        found.discard("")
        for gone in self._containers.keys() - found:
            del self._containers[gone]
        await self._inspect(found)
        self._show()

    async def _inspect(self, identities: set[str]) -> None:
        """Look at these containers, and at those whose networks they share."""
        await self._look(identities)
        await self._look(wanted(self._containers.values()))

    async def _look(self, identities: set[str]) -> None:
        some = asyncio.Semaphore(_AT_ONCE)

        async def one(identity: str) -> None:
            async with some:
                document = await self._call(f"/containers/{quote(identity, safe='')}/json", {}, missing=True)
            container = None if document is None else read(document)
            if container is None:
                self._containers.pop(identity, None)
            else:
                self._containers[container.id] = container

        await asyncio.gather(*map(one, identities))

    async def _call(self, path: str, query: dict[str, str], *, missing: bool = False) -> object:
        """An answer as JSON; None for 404 where that is `missing`."""
        assert self._session is not None
        try:
            async with asyncio.timeout(ANSWER):
                async with self._session.get(self._base + path, params=query, allow_redirects=False) as response:
                    if missing and response.status == 404:
                        return None
                    if response.status != 200:
                        raise DockerFault(await _refused(response))
                    data = bytearray()
                    async for chunk in response.content.iter_any():
                        data += chunk
                        if len(data) > _LARGEST:
                            raise DockerFault("the daemon's answer is too large")
            document: object = json.loads(data)
            return document
        except TimeoutError:
            raise DockerFault(f"no answer within {ANSWER:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise DockerFault(_words(error)) from None
        except (ValueError, RecursionError):
            raise DockerFault("the daemon's answer isn't JSON") from None

    def _show(self) -> None:
        found, complaints = entries(self._containers.values(), self._wishes)
        self._routes.replace(found)
        for complaint in complaints:
            if complaint not in self._complained:
                self._complained.add(complaint)
                self._say("warn", complaint)
        self._complained &= set(complaints)


async def _refused(response: aiohttp.ClientResponse) -> str:
    try:
        message = text(mapping(json.loads(await response.content.read(16_384))).get("message"))
    except (ValueError, RecursionError):
        message = ""
    said = "".join(char if char.isprintable() else " " for char in message)[:300]
    return f"the daemon answered {response.status}{': ' if said else ''}{said}"


def _words(error: Exception) -> str:
    words = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        words = f"the daemon can't be reached: {error.os_error.strerror.lower()}"
        if isinstance(error.os_error, PermissionError):
            words += "; the gateway's user needs read and write on its socket"
    return "".join(char if char.isprintable() else " " for char in words)[:300]
