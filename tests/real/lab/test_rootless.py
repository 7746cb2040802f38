"""The lab as an ordinary user: what the demo runs on where nobody is root."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from lab import NOBODY
from lab.lacking import search_path

CHECKOUT = Path(__file__).resolve().parents[3]
PYTHON = "/usr/bin/python3"  # ours may lie in a home that nobody else can enter
CODE = """
import os, sys
sys.path[:0] = sys.argv[1:]
from lab.rootless import become_root
outside = os.geteuid()
become_root()
from lab import Lab
with Lab() as lab:
    lab.dns.a("api.example.com", lab.site("web"))
    print(os.geteuid(), lab.fetch("api.example.com").ok, lab.connect(lab.site("web", ipv6=True), 81))
"""


def as_nobody(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NOBODY.prefix(), *argv], env={"PATH": search_path()}, cwd="/", capture_output=True, text=True
    )


def test_an_ordinary_user_has_a_lab_too() -> None:
    if not os.path.exists(PYTHON):
        pytest.skip(f"no {PYTHON} that another user could run")
    if as_nobody("ls", str(CHECKOUT / "lab"), sysconfig.get_path("purelib")).returncode:
        pytest.skip("this checkout cannot be read by another user")
    if as_nobody("unshare", "--user", "--map-root-user", "--net", "true").returncode:
        pytest.skip("ordinary users may not make user namespaces here")
    if as_nobody(PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").returncode:
        pytest.skip(f"{PYTHON} is older than 3.11")
    done = as_nobody(PYTHON, "-c", CODE, str(CHECKOUT), sysconfig.get_path("purelib"))
    assert (done.stdout, done.stderr) == ("0 True refused\n", "")
