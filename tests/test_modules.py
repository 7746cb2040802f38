"""Every module imports alone, and the sidecar's way to its first answer imports little.

A module that only works after another one has been imported hides a circle. A heavy module on the sidecar's way costs
every sandbox: asyncio alone is 44 ms and 10 MB (docs/decisions/0001-the-sidecars-own-reactor.md).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("policies", "egress", "ingress", "lab")
# One interpreter for all of them that forks per module: as fresh as an exec, and fifty times cheaper.
IMPORT_EACH = """
import importlib, os, sys, traceback, warnings
warnings.simplefilter("error")
failed = 0
for name in sys.argv[1:]:
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            importlib.import_module(name)
        except BaseException:
            print(f"--- import {name}", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    failed |= os.waitpid(pid, 0)[1]
sys.exit(1 if failed else 0)
"""
# What `egress serve` loads up to the moment when its worker is about to answer, lockdown and worker alike.
SERVE = ("egress.__main__", "egress.commands.serve", "egress.supervisor", "egress.app")
HEAVY = {
    "aiohttp",
    "argparse",
    "asyncio",
    "dataclasses",
    "dnslib",
    "email",
    "http",
    "inspect",
    "ipaddress",
    "logging",
    "pathlib",
    "pyroute2",
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "typing",
    "urllib",
    "yaml",
}
# What the lockdown may load: it runs before any configuration is read (and before anything can go wrong with it).
BEFORE_LOCKDOWN = ("egress.__main__", "egress.commands.serve", "egress.supervisor")
POLICY_IMPORTS_NOTHING_OF = ("egress", "ingress", "lab", "socket", "asyncio", "time", "select", "subprocess")


def modules(package: str) -> list[str]:
    """Every module of a package by its dotted name."""
    found = []
    for path in sorted((CHECKOUT / package).rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def loaded(*names: str) -> set[str]:
    """What a fresh interpreter has loaded after importing these, less what Python loads for itself."""
    code = (
        "import sys; before = set(sys.modules)\n"
        + "".join(f"import {name}\n" for name in names)
        + "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports_alone(package: str) -> None:
    names = modules(package)
    assert names
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, *names],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_import_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("import nothing_of_this_name\n")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, "json", "broken_module"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "import broken_module" in done.stderr
    assert "import json" not in done.stderr


def test_the_sidecar_starts_without_heavy_modules() -> None:
    names = loaded(*SERVE)
    assert "egress.app" in names
    assert not {name for name in names if name.partition(".")[0] in HEAVY}


def test_the_lockdown_needs_no_third_party_module() -> None:
    names = loaded(*BEFORE_LOCKDOWN)
    third_party = {"h11", "idna", "nftables", "yaml", "jsonschema"}
    assert not {name for name in names if name.partition(".")[0] in third_party | HEAVY}


def test_the_policy_language_is_pure() -> None:
    names = loaded(*modules("policies"))
    assert "policies.model" in names
    assert not {name for name in names if name.partition(".")[0] in POLICY_IMPORTS_NOTHING_OF}


@pytest.mark.parametrize(("one", "other"), [("egress", "ingress"), ("ingress", "egress")])
def test_the_two_programs_do_not_know_each_other(one: str, other: str) -> None:
    for path in sorted((CHECKOUT / one).rglob("*.py")):
        text = path.read_text()
        assert f"import {other}" not in text, path
        assert f"from {other}" not in text, path


# A folder of the gateway, and what it must not know: the walls that keep its pure parts pure and its floors apart.
INGRESS_FLOORS = {
    "ingress/routes.py": ("http1", "admission", "providers", "process", "settings", "telemetry", "renewal", "app"),
    "ingress/refusal.py": ("http1", "admission", "providers", "process", "settings", "telemetry", "renewal", "app"),
    "ingress/providers": ("http1", "admission", "process", "settings", "telemetry", "renewal", "app"),
    "ingress/renewal": ("http1", "admission", "providers", "process", "settings", "app"),
    "ingress/admission": ("providers", "process", "settings", "telemetry", "renewal", "app"),
    "ingress/http1": ("providers", "process", "renewal", "app"),
}


@pytest.mark.parametrize("floor", INGRESS_FLOORS)
def test_the_gateways_floors_know_only_what_is_below(floor: str) -> None:
    place = CHECKOUT / floor
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for line in path.read_text().splitlines():
            match = re.match(r"\s*(?:from|import) ingress\.(\w+)", line)
            assert match is None or match[1] not in INGRESS_FLOORS[floor], f"{path}: {line.strip()}"
