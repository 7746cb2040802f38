"""Sandboxes that are Kubernetes objects: listed, then watched, for each namespace on its own.

    list -> watch -> (ends, breaks off) -> watch from where it was -> (410) -> list ...

What breaks is tried again with back-off, and meanwhile the last routes go on.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from ingress.providers.base import Health
from ingress.providers.kubeclient import Broken, Client, Fault, Gone, Unknown
from ingress.providers.kubeconfig import ConfigFault
from ingress.providers.kubeobjects import Index, NotAnObject, mapping, text
from ingress.providers.standing import Backoff, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingress.providers.base import Say
    from ingress.providers.kubeconfig import Access
    from ingress.providers.kubeobjects import Kind
    from ingress.routes import Routes

_RELIST = 3  # faults of watches in a row after which the list is read again, whatever the version was worth
_LONG = 5.0  # seconds after which a watch without events has been a good one


class KubernetesProvider:
    """Objects of one kind. `load` gives the API server and its credentials, anew for each connection."""

    def __init__(
        self,
        kind: Kind,
        load: Callable[[], Access],
        routes: Routes,
        say: Say,
        *,
        namespaces: Sequence[str] = (),
        keep: float = 0.0,
    ) -> None:
        self._source = f"{load().server}: {kind.resource}"
        self._index = Index(kind.translate)
        self._followers = [
            _Follower(kind, load, self._index, routes, say, namespace, keep, self._source)
            for namespace in (namespaces or ("",))
        ]

    async def run(self) -> None:
        """Follow every namespace until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.run())

    async def close(self) -> None:
        """Give the connections back."""
        for follower in self._followers:
            await follower.close()

    def health(self) -> Health:
        """Loaded when every namespace was listed."""
        healths = [follower.standing.health() for follower in self._followers]
        source = self._source
        if self._followers[0].namespace:
            source += " in " + ", ".join(follower.namespace for follower in self._followers)
        degraded = dict.fromkeys(health.degraded for health in healths if health.degraded)
        return Health(all(health.loaded for health in healths), "; ".join(degraded), source)


class _Follower:
    """One namespace, or all of them ("")."""

    def __init__(
        self,
        kind: Kind,
        load: Callable[[], Access],
        index: Index,
        routes: Routes,
        say: Say,
        namespace: str,
        keep: float,
        source: str,
    ) -> None:
        self.namespace = namespace
        self.standing = Standing(say, f"{source} in {namespace}" if namespace else source, keep, routes.__len__)
        self._kind = kind
        self._load = load
        self._index = index
        self._routes = routes
        self._client: Client | None = None
        self._backoff = Backoff()
        self._path = ""
        self._version = ""  # where to go on from; "": list first
        self._faults = 0  # in a row

    async def run(self) -> None:
        try:
            while True:
                await self._once()
        finally:
            await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _once(self) -> None:
        """List where there is nothing to go on from, then watch until it ends. Never raises but when cancelled."""
        try:
            if self._client is None:
                self._client = Client(self._load())
            if not self._version:
                await self._list(self._client)
                self._faults = 0
                self.standing.good()
            begun = time.monotonic()
            if not await self._watch(self._client) and time.monotonic() - begun < _LONG:
                await asyncio.sleep(self._backoff.delay())  # a server that ends watches at once
            else:
                self._well()
        except Gone:
            self._version = ""
            await asyncio.sleep(self._backoff.delay())
        except (Broken, ConfigFault) as error:
            await self._failed(str(error))
        except (Fault, NotAnObject) as error:
            self._version = ""  # what the server says doesn't add up, or it has been set up anew
            await self._failed(str(error))

    def _well(self) -> None:
        self._backoff.reset()
        self._faults = 0

    async def _failed(self, words: str) -> None:
        self._faults += 1
        if self._faults >= _RELIST:
            self._version = ""
        # A watch that breaks off once is nothing: balancers do that. It is a fault when the next one doesn't begin.
        if (self._faults > 1 or not self._version) and self.standing.bad(words):
            self._index.replace((), self.namespace)
            self._routes.replace(self._index.entries())
            self._version = ""
        await self.close()  # the next connection reads certificates and tokens anew
        await asyncio.sleep(self._backoff.delay())

    async def _list(self, client: Client) -> None:
        """Read everything, and only then let it be the table."""
        unknown: Unknown | None = None
        for version in self._kind.versions:
            within = f"/namespaces/{self.namespace}" if self.namespace else ""
            path = f"/apis/{self._kind.group}/{version}{within}/{self._kind.plural}"
            try:
                listing = await client.list(path)
            except Unknown as error:
                unknown = error
                continue
            self._index.replace(listing.items, self.namespace)
            self._routes.replace(self._index.entries())
            self._path, self._version = path, listing.version
            return
        raise Fault(f"{unknown}; is the CustomResourceDefinition {self._kind.resource} installed?")

    async def _watch(self, client: Client) -> bool:
        """Take every event until the server ends the watch; whether there was one."""
        heard = False
        async with aclosing(client.watch(self._path, self._version)) as events:
            async for event in events:
                if event is None:
                    self.standing.good()
                    continue
                self._take(event)
                if not heard:
                    self._well()
                heard = True
        return heard

    def _take(self, event: dict[str, object]) -> None:
        kind, item = text(event.get("type")), mapping(event.get("object"))
        if kind == "ERROR":
            if item.get("code") == 410:
                raise Gone
            raise Fault(f"the watch was ended by the server: {text(item.get('message'))[:300] or 'no reason given'}")
        if kind in ("ADDED", "MODIFIED"):
            self._show(self._index.put(item))
        elif kind == "DELETED":
            self._show(self._index.delete(item))
        elif kind != "BOOKMARK":
            raise Fault("the watch brought an event of an unknown type")
        self._version = text(mapping(item.get("metadata")).get("resourceVersion")) or self._version

    def _show(self, name: str) -> None:
        entry = self._index.entry(name)
        if entry is None:
            self._routes.drop(name)
        else:
            self._routes.put(entry)
