"""A peer: FastAPI and httpx, put together the way agent-sandbox's router is. Runs from the peers' venv.

`python fastapi_proxy.py PORT`; `/<any>/<port>/<rest>` goes to that port of this machine. Bodies are streamed both ways,
20 upstream connections are kept alive (httpx's default and the router's), uvicorn has uvloop and httptools.
No WebSockets, as there.
"""

from __future__ import annotations

import sys

import httpx  # type: ignore[import-not-found]
import uvicorn  # type: ignore[import-not-found]
from fastapi import FastAPI, Request  # type: ignore[import-not-found]
from fastapi.responses import StreamingResponse  # type: ignore[import-not-found]
from starlette.background import BackgroundTask  # type: ignore[import-not-found]

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
client = httpx.AsyncClient(timeout=180.0, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20))


async def proxy(request: Request, sandbox: str, port: int, rest: str) -> StreamingResponse:
    del sandbox
    headers = {name: value for name, value in request.headers.items() if name != "host"}
    url = httpx.URL(f"http://127.0.0.1:{port}/{rest}", query=request.url.query.encode() or None)
    body = request.stream() if "content-length" in headers or "transfer-encoding" in headers else None
    outgoing = client.build_request(request.method, url, headers=headers, content=body)
    response = await client.send(outgoing, stream=True)
    return StreamingResponse(
        response.aiter_raw(),
        status_code=response.status_code,
        headers=dict(response.headers),
        background=BackgroundTask(response.aclose),
    )


if __name__ == "__main__":
    app = FastAPI(openapi_url=None)
    app.add_api_route("/{sandbox}/{port}/{rest:path}", proxy, methods=METHODS)
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False,
        log_level="error", lifespan="off",
    )  # fmt: skip
