"""I11: what the gateway learns from, or tells, is gone or broken. Requests go on; nothing hangs; health says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.corpus import get
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Origin

BROKEN = {
    "cut": '{"sandboxes": {"box": {"host": "127.0.0.1"',
    "junk": "\x00\x01\x02",
    "not-utf8": "caf\udce9",
    "list": "[]",
    "wrong-key": '{"boxes": {}}',
    "wrong-type": '{"sandboxes": {"box": "127.0.0.1"}}',
    "wrong-member": '{"sandboxes": {"box": {"host": "127.0.0.1", "hosst": 1}}}',
    "doubled": '{"sandboxes": {"box": {"host": "127.0.0.1"}, "box": {"host": "127.0.0.2"}}}',
    "deep": "[" * 100_000,
    "bomb": "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 8)}]\n" for n in range(12)
    ),
    "tag": "!!python/object/apply:os.system ['true']",
}  # fmt: skip


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gone")) as made:
        yield made


def readiness(gate: Gateway) -> bytes:
    answer = gate.program.admin("/readyz")
    assert answer.status == 200, "the last routes are known: the gateway is of use"
    return answer.body


def serves(gate: Gateway, origin: Origin, box: bytes = b"box") -> bool:
    return gate.ask(get().replace(b"box-PORT", b"%s-%d" % (box, origin.port))).status == 200


@pytest.mark.parametrize("name", BROKEN)
def test_i11_a_broken_file_leaves_the_routes_alone(name: str, gate: Gateway, module_origin: Origin) -> None:
    gate.route({"box": {"host": "127.0.0.1"}})
    assert soon(lambda: b"degraded" not in readiness(gate))
    fresh = gate.file.with_suffix(".broken")
    fresh.write_bytes(BROKEN[name].encode(errors="surrogateescape"))
    fresh.rename(gate.file)
    assert soon(lambda: b"degraded" in readiness(gate))
    assert serves(gate, module_origin)
    gate.route({"box": {"host": "127.0.0.1"}, "later": {"host": "127.0.0.1"}})
    assert soon(lambda: serves(gate, module_origin, b"later")), "a good file is followed again"
    assert b"degraded" not in readiness(gate)


def test_i11_a_file_that_is_gone(gate: Gateway, module_origin: Origin) -> None:
    gate.file.unlink()
    assert soon(lambda: b"degraded" in readiness(gate))
    assert serves(gate, module_origin)
    gate.file.mkdir()
    assert serves(gate, module_origin)
    gate.file.rmdir()
    gate.route({"box": {"host": "127.0.0.1"}, "back": {"host": "127.0.0.1"}})
    assert soon(lambda: serves(gate, module_origin, b"back"))


async def _mute(link: Link) -> None:
    await link.end()


@pytest.mark.parametrize("how", ["refused", "mute", "junk"])
def test_i11_redis_is_gone(how: str, tmp_path: Path, start_origin: OriginFactory) -> None:
    """A renew intent that can't be told is dropped and counted; the request that caused it never waits."""

    async def junk(link: Link) -> None:
        await link.send(b"HTTP/1.1 400 not redis\r\n\r\n" * 100)

    port = 1 if how == "refused" else start_origin(_mute if how == "mute" else junk).port
    flags = ["--renew-intent-enabled", "--renew-intent-redis-dsn", f"redis://127.0.0.1:{port}/0"]
    origin = start_origin()
    with Gateway(tmp_path, *flags, "--renew-intent-min-interval", "0", "--drain", "1s") as gate:
        for _ in range(50):
            assert serves(gate, origin)
