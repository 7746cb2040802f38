"""etcd and a real Kubernetes API server for a test module."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def need(server: str, variable: str) -> None:
    """Skip where the programs are missing that a cluster is made of."""
    if not server:
        pytest.skip(f"{variable} is not set (make test-kubernetes)")
    for program in ("etcd", "openssl"):
        if not shutil.which(program):
            pytest.skip(f"no {program} here")


def certificates(folder: Path) -> None:
    """An authority, a certificate for 127.0.0.1 and one for a member of system:masters."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test", "-days", "2")
    for name, subject, extension in (
        ("server", "/CN=server", "subjectAltName=IP:127.0.0.1"),
        ("client", "/O=system:masters/CN=test", "extendedKeyUsage=clientAuth"),
    ):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        (folder / f"{name}.ext").write_text(extension)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip


class Cluster:
    """etcd and an API server, on loopback, until `stop`.

    `flags` are the server's own, beside where it listens and whom it knows; its files lie in `folder`, where it runs.
    """

    def __init__(self, folder: Path, server: str, flags: tuple[str, ...]) -> None:
        self.folder = folder
        self._server = (server, *flags)
        certificates(folder)
        self.etcd_port, self.peer_port, self.port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": "ca.crt"}}],
                    "users": [{"name": "test", "user": user}],
                }
            )
        )
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._tls.load_cert_chain(folder / "client.crt", folder / "client.key")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start()

    def start(self) -> None:
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self._run(
            "etcd", "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._run(
            "apiserver", *self._server, "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port",
            str(self.port), "--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key",
            "--client-ca-file", "ca.crt", "--enable-priority-and-fairness=false",
        )  # fmt: skip
        self.until(lambda: self.call("GET", "/livez"))

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(60)

    def compact(self) -> None:
        """Let etcd forget every version before now, and begin again: what watches from before is told 410."""
        key = "L3JlZ2lzdHJ5"  # "/registry"
        answer = self._post(f"http://127.0.0.1:{self.etcd_port}/v3/kv/range", {"key": key})
        revision = answer["header"]["revision"]
        self._post(f"http://127.0.0.1:{self.etcd_port}/v3/kv/compaction", {"revision": revision, "physical": True})

    def define(self, group: str, plural: str, kind: str, versions: tuple[str, ...]) -> None:
        anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        spec = {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": version == versions[-1], "schema": anything}
                for version in versions
            ],
        }
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": spec,
        }
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        for version in versions:
            self.until(partial(self.call, "GET", f"/apis/{group}/{version}/{plural}"))
            self.until(partial(self._discover, f"/apis/{group}/{version}", plural))

    def _discover(self, path: str, plural: str) -> None:
        """The server's list of what it serves comes a moment later than the thing itself. Raises OSError until then."""
        if plural not in {one["name"] for one in self.call("GET", path)["resources"]}:
            raise OSError(f"{path} does not list {plural} yet")

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
        """One call as a member of system:masters; what it answers. Raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": content}, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self._tls) as response:
            answer = response.read()
        return json.loads(answer) if answer.startswith(b"{") else answer

    def _post(self, url: str, body: object) -> Any:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as response:
            return json.load(response)

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def until(self, work: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                work()
                return
            except OSError:  # urllib's are
                for name, process in self._processes.items():
                    assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-2000:]
                assert time.monotonic() < end, "the API server did not come up"
                time.sleep(0.1)
