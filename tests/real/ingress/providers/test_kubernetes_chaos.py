"""Whatever a Kubernetes API server does in between, in the end the table is as the server says; over TLS too."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from ingress.providers import ProviderSettings, build
from ingress.routes import Ambiguous
from tests.real.ingress.providers.fake_kubernetes import FakeKubernetes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingress.providers.base import Provider, Say
    from ingress.routes import Routes


def provider(path: Path, config: str) -> Callable[[Routes, Say], Provider]:
    path.write_text(config)
    return lambda routes, say: build("batchsandbox", ProviderSettings(kubeconfig=str(path)), routes, say)


def truth(server: FakeKubernetes) -> dict[str, object]:
    """What routes should say: for each name its host, or its namespaces."""
    said: dict[str, object] = {}
    for name in {name for _, name in server.objects}:
        places = sorted(namespace for namespace, other in server.objects if other == name)
        item = server.objects[places[0], name]
        address = json.loads(item["metadata"]["annotations"]["sandbox.opensandbox.io/endpoints"])[0]
        said[name] = address if len(places) == 1 else places
    return said


def table(routes: Routes) -> dict[str, object]:
    return {entry.id: list(entry.where) if isinstance(entry, Ambiguous) else entry.host for entry in routes.entries()}


async def misbehave(server: FakeKubernetes, chance: random.Random) -> None:
    """One thing that happens."""
    name, namespace = chance.choice("abcde"), chance.choice(["one", "two"])
    what = chance.randrange(12)
    if what < 4:
        server.ready(name, f"10.0.{chance.randrange(255)}.{chance.randrange(1, 255)}", namespace)
    elif what < 7 and (namespace, name) in server.objects:
        server.delete(name, namespace)
    elif what == 7:
        server.cut(chance.choice([b"", b'{"type":"ADD']))
    elif what == 8:
        server.finish()
    elif what == 9:
        server.compact()
        server.finish()
    elif what == 10:
        server.send(chance.choice([b"garbage\n", b"\n", b'{"type":"ERROR","object":{"code":410}}\n']))
    elif what == 11:
        server.refusals += [(chance.choice(["list", "watch"]), chance.choice([410, 429, 500, 403]), "no")]
    await asyncio.sleep(chance.choice([0, 0, 0.001, 0.02]))


@pytest.mark.parametrize("seed", range(6))
def test_in_the_end_the_table_is_as_the_server_says(following: Any, tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        async with FakeKubernetes() as server:
            server.ready("a")
            async with following(provider(tmp_path / "kubeconfig", server.kubeconfig())) as followed:
                for _ in range(150):
                    await misbehave(server, chance)
                    assert len(server.lists) < 200
                    assert len(server.watches) < 200
                server.refusals.clear()
                await following.until(lambda: table(followed.routes) == truth(server), within=15)
                await following.until(lambda: not followed.provider.health().degraded, within=15)

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if seed % 2 else None)
    with runner:
        runner.run(scenario())


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with ca.crt, server.{crt,key} for the name `kubernetes` and client.{crt,key}."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test", "-days", "2")
    for name, extension in (("server", "subjectAltName=DNS:kubernetes"), ("client", "extendedKeyUsage=clientAuth")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tmp_path / "extension").write_text(extension)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.crt", "-days", "2", "-extfile", "extension")  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("", ""),
        ("certificate-authority-data", "certificate verify failed"),
        ("tls-server-name", "certificate verify failed"),
        ("client-key", ""),
    ],
)
def test_certificates_are_checked_both_ways(following: Any, authority: Path, drop: str, words: str) -> None:
    async def scenario() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority / "ca.crt"))
        context.load_cert_chain(authority / "server.crt", authority / "server.key")
        context.verify_mode = ssl.CERT_REQUIRED
        async with FakeKubernetes(tls=context) as server:
            server.ready("a")
            config = json.loads(server.kubeconfig())
            data = {
                name: base64.b64encode((authority / name).read_bytes()).decode() for name in ("ca.crt", "client.crt")
            }
            cluster = config["clusters"][0]["cluster"]
            cluster |= {"certificate-authority-data": data["ca.crt"], "tls-server-name": "kubernetes"}
            cluster.pop(drop, None)
            if drop != "client-key":
                user = {"client-certificate-data": data["client.crt"], "client-key": "client.key"}
                config["users"][0]["user"] = user
            async with following(provider(authority / "kubeconfig", json.dumps(config))) as followed:
                if not drop:
                    await following.until(lambda: followed.ids() == ["a"])
                    return
                await following.until(lambda: followed.provider.health().degraded)
                assert words in followed.provider.health().degraded
                assert followed.ids() == []

    asyncio.run(scenario())
