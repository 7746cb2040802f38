"""A server process inside a namespace that its test steers over a socket pair.

One JSON object a line in each direction; a call waits for its answer, so what a test has set is in force when the call
returns. The child ends when the pair closes: a test that is killed leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.namespace import Namespace

_CHECKOUT = Path(__file__).resolve().parent.parent
_START_SECONDS = 60.0


class Service:
    """The test's end: starts `python -m <module>` in a namespace and calls it."""

    def __init__(self, namespace: Namespace, module: str) -> None:
        self._module = module
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = namespace.popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                cwd=_CHECKOUT,
                pass_fds=[theirs.fileno()],
            )
        ours.settimeout(_START_SECONDS)
        self._socket = ours
        self._stream = ours.makefile("rb")

    def wait_ready(self) -> None:
        """Until the child has bound everything. Raises LabError if it could not."""
        self.call("ready")

    def call(self, method: str, **arguments: Any) -> Any:
        """Have the child do `method`; its result. Raises LabError with the child's words."""
        try:
            self._socket.sendall(json.dumps([method, arguments]).encode() + b"\n")
            line = self._stream.readline()
        except OSError as error:
            raise LabError(f"{self._module}: {method}: {error}") from error
        if not line:
            raise LabError(f"{self._module} ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise LabError(f"{self._module}: {method}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        self._stream.close()
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def serve(fd: int, methods: dict[str, Callable[..., Any]]) -> None:
    """The child's end: answer calls until the pair closes."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd), limit=1 << 26)
    while line := await reader.readline():
        method, arguments = json.loads(line)
        try:
            answer = {"result": methods[method](**arguments)}
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it was
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    writer.close()
