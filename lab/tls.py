"""TLS on port 443 of the lab's internet: for the addresses that a test gives, in the place of the plain sites there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from lab.namespace import Namespace

_TABLE = "lab_tls"
_PORT, _OTHER = 4433, 4434
_ROOT = Path(__file__).resolve().parent.parent


class TlsSites:
    """A context manager; `add` gives it addresses. The certificate is for `name`, from an authority of its own, whose
    certificate is the file `authority`. Keys are P-256, or RSA of 2048 bits. One at a time in a namespace."""

    def __init__(self, namespace: Namespace, *, rsa: bool = False, name: str = "lab.example.com") -> None:
        self._namespace = namespace
        self._key = ["rsa:2048"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="sallyport-tls-")
        folder = Path(self._folder.name)
        self.certificate, self.authority = str(folder / "pem"), str(folder / "authority")

    def _make(self, subject: str, extensions: list[str], *more: str) -> bytes:
        """A certificate, and what else is told on standard output."""
        config = Path(self._folder.name, "config")
        config.write_text("[req]\ndistinguished_name = dn\n[dn]\n")
        argv = ["openssl", "req", "-config", str(config), "-x509", "-nodes", "-days", "2", "-subj", f"/CN={subject}"]
        argv += [word for extension in extensions for word in ("-addext", extension)]
        argv += ["-newkey", *self._key, *more]
        return subprocess.run(argv, capture_output=True, check=True).stdout

    def _certify(self) -> None:
        key = os.path.join(self._folder.name, "key")
        powers = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
        self._make("authority", powers, "-keyout", key, "-out", self.authority)
        signed = "-keyout", "-", "-CA", self.authority, "-CAkey", key
        names = ["basicConstraints=critical,CA:FALSE", f"subjectAltName=DNS:{self._name}"]
        Path(self.certificate).write_bytes(self._make("server", names, *signed))

    def __enter__(self) -> Self:
        self._certify()
        self._process = self._namespace.popen(
            [sys.executable, "-m", "lab.tls_server", self.certificate, f"{_PORT}=", f"{_OTHER}=secp384r1"],
            env={**os.environ, "PYTHONPATH": str(_ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        lines = [f"table inet {_TABLE} {{"]
        for family, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
            lines += [f"set usual{family} {{ type {kind}; }}", f"set again{family} {{ type {kind}; }}"]
        lines.append("chain arriving { type nat hook prerouting priority -100;")
        for ip, family in (("ip", 4), ("ip6", 6)):
            lines.append(f"{ip} daddr @usual{family} tcp dport 443 redirect to :{_PORT}")
            lines.append(f"{ip} daddr @again{family} tcp dport 443 redirect to :{_OTHER}")
        self._namespace.nft("\n".join([*lines, "}", "}"]) + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("", timeout=60)
        self._namespace.nft(f"delete table inet {_TABLE}\n")
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """The server's."""
        return self._process.pid

    def add(self, *addresses: str, asks_again: bool = False) -> None:
        """Answer at these from now on; with `asks_again`, with a HelloRetryRequest to whoever offers X25519 alone."""
        for address in addresses:
            name = ("again" if asks_again else "usual") + ("6" if ":" in address else "4")
            self._namespace.nft(f"add element inet {_TABLE} {name} {{ {address} }}\n")
