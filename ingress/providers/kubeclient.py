"""The two calls of the Kubernetes API that a gateway needs, list and watch, over one connection of their own.

https://kubernetes.io/docs/reference/using-api/api-concepts/ ("Efficient detection of changes"): a list gives a
resourceVersion, a watch from there gives each later change; 410 says that the version is too old to go on from.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from ingress.providers.kubeconfig import Access, ConfigFault, tls
from ingress.providers.kubeobjects import mapping, text
from ingress.providers.lines import Garbage, Lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PAGE = 500
"""Objects a page."""
ANSWER = 30.0
"""Seconds for the head of an answer, and for a page of a list."""
WATCH = 300
"""Seconds after which a watch is asked to end: none is forgotten by a balancer in between."""
_LARGEST = 128 * 1024 * 1024  # bytes of one page
_ASIDE = 262_144  # bytes from which on an answer is parsed in a thread: the loop has requests to serve
_RESTARTS = 2


class Fault(Exception):
    """The server can't be used just now; the text says why, for people."""


class Broken(Fault):
    """A connection that broke, or did not come about: what was read before it holds."""


class Gone(Exception):
    """410: there is no going on from this resourceVersion; list anew."""


class Unknown(Fault):
    """404: the server has no such resource."""


class Listing(NamedTuple):
    """A whole list."""

    items: list[object]
    version: str


class Client:
    """One API server, until `close`. Every call raises Fault, or Gone, and nothing else."""

    def __init__(self, access: Access) -> None:
        self._access = access
        try:
            context = tls(access)
        except ConfigFault as error:
            raise Fault(str(error)) from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context or True, socket_factory=_lively, limit=4),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            headers={"Accept": "application/json", "User-Agent": "sallyport-ingress"},
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()

    async def list(self, path: str) -> Listing:
        """All objects under `path`, page by page; a list that grows too old on the way is begun again."""
        for attempt in range(_RESTARTS + 1):
            size = PAGE if attempt < _RESTARTS else 0  # the last time in one piece, which can't grow old
            try:
                return await self._pages(path, size)
            except Gone:
                continue
        raise Fault("the list grew too old before it was read")

    async def _pages(self, path: str, size: int) -> Listing:
        items: list[object] = []
        onward = ""
        while True:
            query = {"limit": str(size)} if size else {}
            if onward:
                query["continue"] = onward
            page = await self._page(path, query)
            meta = mapping(page.get("metadata"))
            found = page.get("items")
            if found is None:
                found = []  # Go writes an empty list so
            version = text(meta.get("resourceVersion"))
            if not isinstance(found, list) or not version:
                raise Fault("the server's answer is no list of objects")
            items += found
            onward = text(meta.get("continue"))
            if not onward:
                return Listing(items, version)

    async def _page(self, path: str, query: dict[str, str]) -> dict[str, object]:
        try:
            async with asyncio.timeout(ANSWER):
                async with await self._get(path, query) as response:
                    data = bytearray()
                    async for chunk in response.content.iter_any():
                        data += chunk
                        if len(data) > _LARGEST:
                            raise Fault("the server's answer is too large")
            page = await asyncio.to_thread(json.loads, data) if len(data) > _ASIDE else json.loads(data)
        except TimeoutError:
            raise Broken(f"no answer within {ANSWER:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(_words(error)) from None
        except (ValueError, RecursionError):
            raise Fault("the server's answer isn't JSON") from None
        return page if isinstance(page, dict) else {}

    async def watch(self, path: str, version: str) -> AsyncGenerator[dict[str, object] | None, None]:
        """Every event since `version` as it comes, and None before them all when the server has begun."""
        seconds = WATCH - random.randrange(WATCH // 5)  # noqa: S311 - so that gateways don't come all at one moment
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        lines = Lines()
        try:
            async with asyncio.timeout(ANSWER):
                response = await self._get(path, query, silence=seconds + ANSWER)
            async with response:
                yield None
                async for chunk in response.content.iter_any():
                    for event in lines.feed(chunk):
                        yield event
        except TimeoutError:
            raise Broken("the watch went silent") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(f"the watch broke off: {_words(error)}") from None
        except Garbage as error:
            raise Fault(f"the watch brought {error}") from None

    async def _get(self, path: str, query: dict[str, str], silence: float | None = None) -> aiohttp.ClientResponse:
        """A successful answer whose body is still to be read."""
        try:
            token = self._access.bearer()
        except ConfigFault as error:
            raise Fault(str(error)) from None
        response = await self._session.get(
            self._access.server + path,
            params=query,
            headers={"Authorization": f"Bearer {token}"} if token else None,
            allow_redirects=False,  # the token is for this server
            server_hostname=self._access.server_name or None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence),
        )
        if response.status == 200:
            return response
        async with response:
            raise _refused(response.status, await response.content.read(16_384))


def _refused(status: int, body: bytes) -> Exception:
    """What an answer other than 200 means."""
    if status == 410:
        return Gone()
    try:
        message = text(mapping(json.loads(body)).get("message"))
    except (ValueError, RecursionError):
        message = ""
    said = "".join(char if char.isprintable() else " " for char in message)[:300]
    kind = Unknown if status == 404 else Broken if status >= 500 or status == 429 else Fault
    hint = {
        401: "; its credentials are not accepted",
        403: "; it needs the verbs list and watch on this resource",
    }.get(status, "")
    return kind(f"the server answered {status}{': ' if said else ''}{said}{hint}")


def _words(error: Exception) -> str:
    words = str(error) or type(error).__name__
    return "".join(char if char.isprintable() else " " for char in words)[:300]


def _lively(info: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """A socket that notices within half a minute when its peer is no more: a watch never sends (tcp(7))."""
    made = socket.socket(info[0], info[1], info[2])
    for option, value in (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 25_000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made
