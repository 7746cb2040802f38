"""I10: tunnels whose client does not read. What was written for it may still leave, but is not kept for ever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import frames
from tests.real.ingress.hostile.client import wait
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import PATIENCE, soon
from tests.real.ingress.hostile.slow import ROOM, SIZE, broken_off, slow

if TYPE_CHECKING:
    import socket

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Link


@pytest.mark.parametrize("what", ["idle", "deleted"])
def test_i10_a_tunnels_client_that_does_not_read_is_broken_off_in_the_end(
    what: str, tmp_path: Path, start_origin: OriginFactory
) -> None:
    """Its sandbox has said more than the kernel holds for it, then nothing; or is no more."""

    async def talks(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(frames.agreement() + frames.frame(frames.BINARY, b"x" * SIZE))
        await link.end()

    origin = start_origin(talks)
    with (
        Gateway(tmp_path, *ROOM, "--body-timeout", "1s", "--tunnel-timeout", "1s" if what == "idle" else "1h") as gate,
        slow(gate.port, tls=False) as sock,
    ):
        sock.sendall(frames.opening(origin))
        assert soon(lambda: b"sallyport_ingress_tunnels 1" in metrics(gate))
        if what == "deleted":
            wait(1)  # so that it has said all
            gate.route({})
        assert soon(lambda: gate_side_is_gone(sock), 2 * PATIENCE)
        assert soon(lambda: b"sallyport_ingress_tunnels 0" in metrics(gate))


def metrics(gate: Gateway) -> bytes:
    return gate.program.admin("/metrics").body


def gate_side_is_gone(sock: socket.socket) -> bool:
    """Has the gateway let go of this connection: nothing of what it wrote waits any more, and it has ended or reset it.
    What the kernel still holds for the client is the kernel's."""
    own = sock.getsockname()[1]
    peer = sock.getpeername()[1] if not broken_off(sock) else 0
    if not peer:
        return True
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == peer and int(fields[2].rpartition(":")[2], 16) == own:
            return fields[9] == "0"  # no inode: no process has it
    return True
