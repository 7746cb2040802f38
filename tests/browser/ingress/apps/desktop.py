"""A remote desktop of one page: noVNC's files, and a screen that is drawn over a WebSocket (RFB 3.8, RFC 6143).

    desktop.py PORT NOVNC

The screen is blue; a click turns it green. That is all a test needs to see that pixels come and clicks go.
"""

from __future__ import annotations

import asyncio
import struct
import sys

from aiohttp import WSMsgType, web

WIDTH, HEIGHT = 320, 200
BLUE, GREEN = bytes((0xC8, 0x50, 0x20, 0)), bytes((0x40, 0xA0, 0x30, 0))  # little-endian: blue, green, red, nothing
PAGE = """\
<!doctype html>
<html lang="en">
  <head><meta charset="utf-8"><title>A desktop in a sandbox</title></head>
  <body>
    <p id="state">connecting</p>
    <div id="screen" style="width: 640px; height: 400px"></div>
    <script type="module">
      import RFB from "./novnc/core/rfb.js";
      // Beside this page, wherever that is: so it needs no prefix to be told.
      const place = new URL("websockify", location.href);
      place.protocol = location.protocol === "https:" ? "wss:" : "ws:";
      const rfb = new RFB(document.querySelector("#screen"), place.href, { wsProtocols: ["binary"] });
      const say = (text) => (document.querySelector("#state").textContent = text);
      rfb.addEventListener("connect", () => say("connected"));
      rfb.addEventListener("desktopname", (event) => (document.title = event.detail.name));
      rfb.addEventListener("disconnect", (event) => say(event.detail.clean ? "disconnected" : "lost"));
      window.rfb = rfb;
    </script>
  </body>
</html>
"""


class Stream:
    """The octets of a WebSocket's messages, wherever they are cut."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._buffer = b""

    async def read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            message = await self._socket.receive()
            if message.type != WSMsgType.BINARY:
                raise EOFError
            self._buffer += message.data
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(data)


async def screen(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("binary",))
    await socket.prepare(request)
    try:
        await serve(Stream(socket))
    except (EOFError, ConnectionError):
        pass
    return socket


async def serve(stream: Stream) -> None:
    await stream.write(b"RFB 003.008\n")
    assert await stream.read(12) == b"RFB 003.008\n"
    await stream.write(b"\x01\x01")  # one way in: none needed
    assert await stream.read(1) == b"\x01"
    await stream.write(struct.pack(">I", 0))
    await stream.read(1)  # shared or not
    name = b"a sandbox's screen"
    true_colour = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
    await stream.write(struct.pack(">HH", WIDTH, HEIGHT) + true_colour + struct.pack(">I", len(name)) + name)
    colour, drawn, swap = BLUE, b"", False

    async def draw() -> None:
        pixel = colour[2::-1] + colour[3:] if swap else colour
        await stream.write(struct.pack(">BxHHHHHi", 0, 1, 0, 0, WIDTH, HEIGHT, 0) + pixel * (WIDTH * HEIGHT))

    while True:
        kind = (await stream.read(1))[0]
        if kind == 0:  # SetPixelFormat
            bits, _, big, true, *_, red, green, blue = struct.unpack(">BBBBHHHBBB3x", (await stream.read(19))[3:])
            assert (bits, big, true) == (32, 0, 1)
            assert sorted((red, green, blue)) == [0, 8, 16]
            swap = red == 0
        elif kind == 2:  # SetEncodings
            (count,) = struct.unpack(">xH", await stream.read(3))
            await stream.read(4 * count)
        elif kind == 3:  # FramebufferUpdateRequest
            incremental = (await stream.read(9))[0]
            if not incremental or drawn != colour:
                await draw()
                drawn = colour
        elif kind == 4:  # KeyEvent
            await stream.read(7)
        elif kind == 5:  # PointerEvent
            buttons = (await stream.read(5))[0]
            if buttons & 1 and colour != GREEN:
                drawn = colour = GREEN
                await draw()
        elif kind == 6:  # ClientCutText
            (length,) = struct.unpack(">3xi", await stream.read(7))
            await stream.read(abs(length))
        else:
            return


async def page(request: web.Request) -> web.Response:
    return web.Response(text=PAGE, content_type="text/html")


def main() -> None:
    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/websockify", screen)
    app.router.add_static("/novnc", sys.argv[2])
    asyncio.run(web._run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None))


if __name__ == "__main__":
    main()
