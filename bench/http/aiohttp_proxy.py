"""A peer: a reverse proxy of aiohttp's server and client, as anyone would write it. Runs from the peers' venv.

`python aiohttp_proxy.py PORT`; `/<any>/<port>/<rest>` goes to that port of this machine.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}


async def proxy(request: web.Request) -> web.StreamResponse:
    _, _, port, rest = request.raw_path.split("/", 3)
    url = f"http://127.0.0.1:{port}/{rest}"
    session: aiohttp.ClientSession = request.app["session"]
    if request.headers.get("Upgrade", "").lower() == "websocket":
        return await tunnel(request, session, url)
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
    body = request.content if request.body_exists else None
    async with session.request(request.method, url, headers=headers, data=body, allow_redirects=False) as upstream:
        kept = [(name, value) for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP]
        response = web.StreamResponse(status=upstream.status, headers=dict(kept))
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def tunnel(request: web.Request, session: aiohttp.ClientSession, url: str) -> web.WebSocketResponse:
    client = web.WebSocketResponse(compress=False)
    await client.prepare(request)
    async with session.ws_connect(url) as upstream:

        async def back() -> None:
            async for message in upstream:
                await send(client, message)

        answers = asyncio.create_task(back())
        async for message in client:
            await send(upstream, message)
        answers.cancel()
    return client


async def send(to: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, message: aiohttp.WSMessage) -> None:
    if message.type is aiohttp.WSMsgType.TEXT:
        await to.send_str(message.data)
    elif message.type is aiohttp.WSMsgType.BINARY:
        await to.send_bytes(message.data)


async def application() -> web.Application:
    app = web.Application(client_max_size=0)
    app["session"] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
    )
    app.router.add_route("*", "/{path:.*}", proxy)
    return app


if __name__ == "__main__":
    uvloop.install()
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
