"""Certificates as an operator makes them: with the `openssl` command, one authority for the test."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def openssl(*argv: str, folder: Path) -> None:
    done = subprocess.run(["openssl", *argv], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.crt", folder=folder,
        )  # fmt: skip

    def issue(self, name: str, *, key_options: Sequence[str] = ("-nodes",)) -> tuple[Path, Path]:
        """A certificate with this common name, and its key."""
        key, request, certificate = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *key_options, "-subj", f"/CN={name}",
            "-keyout", key.name, "-out", request.name, folder=self.folder,
        )  # fmt: skip
        (self.folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl(
            "x509", "-req", "-in", request.name, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1",
            "-extfile", "san", "-out", certificate.name, folder=self.folder,
        )  # fmt: skip
        return certificate, key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A certificate authority of this test's own."""
    folder = tmp_path / "authority"
    folder.mkdir()
    return Authority(folder)
