"""What importing the language may cost: the sidecar answers within milliseconds of its start."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEAR = [
    "asyncio",
    "dataclasses",
    "inspect",
    "logging",
    "ipaddress",
    "urllib",
    "http",
    "email",
    "ssl",
    "yaml",
    "idna",
    "unicodedata",
    "dnslib",
    "subprocess",
    "pathlib",
    "shutil",
    "tempfile",
    "random",
    "secrets",
    "hashlib",
    "argparse",
    "importlib.resources",
]
MODULES = [
    "address",
    "address_plan",
    "edit",
    "firstmatch",
    "matcher",
    "model",
    "name",
    "name_index",
    "parser",
    "ports",
    "presets",
    "source",
    "special",
]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports_alone_and_cheaply(module: str) -> None:
    code = (
        f"import sys; before = set(sys.modules); import policies.{module}; "
        f"print(sorted(set({DEAR!r}) & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
