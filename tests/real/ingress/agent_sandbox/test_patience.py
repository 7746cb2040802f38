"""How long a caller's X-Sandbox-Timeout lasts, counted in ticks that the test makes."""

from __future__ import annotations

import asyncio

from ingress.admission.access import KeyRing
from ingress.admission.gate import AGENT, AGENT_STRIPPED, Gate, GateSettings
from ingress.admission.targets import Targets
from ingress.admission.throttle import Throttle
from ingress.http1.core import Gateway
from ingress.routes import Routes, Sandbox
from ingress.settings.limits import Limits
from ingress.telemetry.stats import Stats
from policies.address import parse_network


def test_the_callers_seconds_begin_when_its_sandbox_is_asked() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        pod = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = pod.sockets[0].getsockname()[1]
        routes, throttle = Routes(), Throttle()
        gate = Gate(GateSettings(frozenset((AGENT,))), routes, KeyRing({}), throttle)
        targets = Targets((parse_network("127.0.0.0/8"),))
        limits = Limits(wait_ready=1000.0)
        gateway = Gateway(gate, targets, routes, limits, Stats(), stripped=AGENT_STRIPPED, detail=True)
        server = await loop.create_server(lambda: gateway.protocol("127.0.0.1", False), "127.0.0.1", 0)
        routes.put(Sandbox("box", "127.0.0.1", ready=False))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        head = (
            f"GET / HTTP/1.1\r\nHost: x\r\nX-Sandbox-ID: box\r\nX-Sandbox-Port: {port}\r\nX-Sandbox-Timeout: 5\r\n\r\n"
        )
        writer.write(head.encode())
        while not any(client.waits() for client in gateway.clients):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(20):
            gateway.tick(loop.time())
        routes.put(Sandbox("box", "127.0.0.1"))
        await asyncio.wait_for(asked.wait(), 20)
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        for _ in range(4):
            gateway.tick(loop.time())
        await asyncio.sleep(0.01)
        assert not answer.done(), "twenty seconds of waiting were not its own"
        for _ in range(2):
            gateway.tick(loop.time())
        assert (await asyncio.wait_for(answer, 20)).startswith(b"HTTP/1.1 504 ")
        writer.close()
        await writer.wait_closed()
        server.close()
        pod.close()
        await gateway.drain(0)
        await asyncio.sleep(0.01)
        throttle.close()

    asyncio.run(play())
