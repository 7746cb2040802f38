"""Runs under the SDK's own interpreter: reads calls as JSON lines, makes them on one Sandbox, tells what came of each.

drive.py sync|async, with {"url", "id", "namespace", "port", "headers"} as the first line. A call is
{"do": "run" | "write" | "write_stream" | "read" | "read_to" | "list" | "exists" | "send" | "pod_ip", ...}.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import logging
import sys
import time
from collections.abc import Awaitable
from typing import Any

SDK = "k8s_agent_sandbox"


class Pieces(io.RawIOBase):
    """A file of so many octets that is read in pieces."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = b"s" * min(self.left, size if size >= 0 else self.left)
        self.left -= len(piece)
        return piece


class Later:
    """Somewhere to write to, as the asynchronous client wants it."""

    def __init__(self, into: io.BytesIO) -> None:
        self.into = into

    async def write(self, data: bytes) -> int:
        return self.into.write(data)


def make(kind: str, told: dict[str, Any]) -> Any:
    """A Sandbox of the SDK that knows its router."""
    models = importlib.import_module(f"{SDK}.models")
    config = models.SandboxDirectConnectionConfig(
        api_url=told["url"], server_port=told["port"], extra_headers=told["headers"]
    )
    module = importlib.import_module(f"{SDK}.{'sandbox' if kind == 'sync' else 'async_sandbox'}")
    return getattr(module, "Sandbox" if kind == "sync" else "AsyncSandbox")(
        claim_name="claim", sandbox_id=told["id"], namespace=told["namespace"], connection_config=config
    )


def begin(sandbox: Any, call: dict[str, Any]) -> Any:
    """What the SDK's method gives: a value, or something to await."""
    do = call.pop("do")
    if do == "run":
        return sandbox.commands.run(**call)
    if do == "write":
        return sandbox.files.write(call["path"], call["text"])
    if do == "write_stream":
        return sandbox.files.write(call["path"], Pieces(call["size"]))
    if do == "read_to":
        return sandbox.files.read_to(call["path"], call["into"])
    if do == "send":
        return sandbox.connector.send_request(call.pop("method"), call.pop("endpoint"), **call)
    if do == "pod_ip":
        return sandbox.connector._pod_ip
    return getattr(sandbox.files, do)(**call)


def plain(value: Any) -> Any:
    """As JSON can carry it."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return {"size": len(value), "text": value[:100].decode("latin-1")}
    if hasattr(value, "status_code"):
        return {"status": value.status_code, "text": value.text, "headers": dict(value.headers)}
    return value


async def play(kind: str) -> None:
    sandbox = make(kind, json.loads(sys.stdin.readline()))
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        call = json.loads(line)
        into = io.BytesIO()
        if call["do"] == "read_to":
            call["into"] = into if kind == "sync" else Later(into)
        began = time.monotonic()
        told: dict[str, Any]
        try:
            value = begin(sandbox, call)
            if isinstance(value, Awaitable):
                value = await value
            told = {"value": plain(value)}
        except Exception as fault:  # noqa: BLE001  # whatever the SDK raises is what the test wants to see
            response = getattr(fault, "response", None)
            told = {
                "fault": type(fault).__name__,
                "status": getattr(fault, "status_code", None),
                "text": getattr(response, "text", ""),
            }
        told["seconds"] = time.monotonic() - began
        if into.tell():
            told["into"] = into.tell()
        print(json.dumps(told), flush=True)
    if kind == "sync":
        sandbox.close_connection()
    else:
        await sandbox.close_connection()
        await sandbox.k8s_helper.close()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(play(sys.argv[1]))
