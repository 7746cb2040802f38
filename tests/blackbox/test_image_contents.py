"""What lies in the images: all that is needed, nothing that somebody left there, the same for the same inputs.

Each image is one layer, read as the daemon saves it. When they are left out: as in test_image.py.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.blackbox.test_image import build, docker

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAMS = ("egress", "ingress")
LARGEST = {"egress": 90_000_000, "ingress": 80_000_000}
EPOCH = 1767225600
SITE = "opt/venv/lib/python3.11/site-packages"
STRAY = re.compile(
    r"(^|/)(\.git[^/]*|\.cache|\.ssh|\.venv|\.[a-z]*_history|\.[a-z]*rc|\.profile|tests?|pip|setuptools|ensurepip)$"
    r"|\.(whl|tar|gz|c|h|pyx|o|a|orig|rej|swp|log|pem\.key|lock)$|^(build|home|image)/|^var/(cache|lib/apt|log)/|^root/"
)
AGAIN = """
import hashlib, os, subprocess, sys
def tree(root):
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            what = os.readlink(path) if os.path.islink(path) else "" if os.path.isdir(path) else open(path, "rb").read()
            yield path[len(root):], oct(about.st_mode), about.st_mtime, hashlib.sha256(repr(what).encode()).hexdigest()
lock = f"/build/requirements/{sys.argv[1]}.lock"
subprocess.run(["python3", "/build/image-root", sys.argv[1], "--lock", lock, "--into", "/again"], check=True)
first, second = list(tree("/image")), list(tree("/again"))
print(len(first), *(a[0] for a, b in zip(first, second) if a != b), len(second))
"""


class Image(NamedTuple):
    """One image, and the members of its one layer by path."""

    program: str
    tag: str
    config: dict[str, Any]
    size: int
    layer: tarfile.TarFile
    files: dict[str, tarfile.TarInfo]

    def read(self, path: str) -> bytes:
        """A file's content; a failure where there is none."""
        opened = self.layer.extractfile(self.files[path])
        assert opened is not None, path
        return opened.read()


@pytest.fixture(scope="module", params=PROGRAMS)
def image(request: pytest.FixtureRequest) -> Iterator[Image]:
    program = request.param
    tag = build(program, f"sallyport-{program}:test")
    (about,) = json.loads(docker("inspect", tag).stdout)
    saved = subprocess.run(["docker", "save", tag], capture_output=True, check=True, timeout=60).stdout
    with tarfile.open(fileobj=io.BytesIO(saved)) as outer:
        manifest = outer.extractfile("manifest.json")
        assert manifest is not None
        (layer,) = json.load(manifest)[0]["Layers"]
        opened = outer.extractfile(layer)
        assert opened is not None
        with tarfile.open(fileobj=io.BytesIO(opened.read())) as inner:
            files = {member.name.strip("./"): member for member in inner.getmembers()}
            yield Image(program, tag, about["Config"], about["Size"], inner, files)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_small(image: Image) -> None:
    assert image.size <= LARGEST[image.program], f"{image.size} bytes"
    assert image.size > 20_000_000, "Python is in it"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_stray_lies_in_it(image: Image) -> None:
    assert [path for path in image.files if STRAY.search(path)] == []
    assert "usr/bin/python3.11" in image.files
    programs = {path for path in image.files if re.search(r"(^|/)s?bin/", path)}
    python = {f"{where}/python{end}" for where in ("usr/bin", "opt/venv/bin") for end in ("", "3", "3.11")}
    assert programs - python == {f"opt/venv/bin/{image.program}"}, "no shell, no package manager"
    assert {STRAY.search(path) is not None for path in (".git", "root/.bash_history", "a/tests", "var/log/x")} == {True}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nobody_gains_rights_by_a_file_of_it(image: Image) -> None:
    kept = {path: member.mode & 0o7777 for path, member in image.files.items() if not member.issym()}
    assert [path for path, mode in kept.items() if mode & 0o6000] == [], "setuid, setgid"
    assert [path for path, mode in kept.items() if mode & 0o022] == ["tmp"]
    assert kept["tmp"] == 0o1777
    assert {(member.uid, member.gid) for member in image.files.values()} == {(0, 0)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_times_are_the_one_that_was_given(image: Image) -> None:
    assert {path: member.mtime for path, member in image.files.items() if path and member.mtime != EPOCH} == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_compiled_code_is_ours(image: Image) -> None:
    """So an image for another machine is the same build on another base."""
    compiled = [path for path in image.files if path.startswith(SITE) and path.endswith(".so")]
    record = image.read(next(path for path in image.files if re.search(r"/sallyport-.*\.dist-info/RECORD$", path)))
    ours = [line.partition(",")[0] for line in record.decode().splitlines()]
    assert f"{image.program}/app.py" in ours
    assert not [path for path in ours if not path.startswith(("policies/", "egress/", "ingress/", "sallyport-", "../"))]
    assert not [path for path in compiled if path.removeprefix(f"{SITE}/") in ours]
    assert any("yaml" in path for path in compiled), "the control: others' wheels bring some"
    for package in ("policies", "egress", "ingress"):
        assert not [path for path in (CHECKOUT / package).rglob("*") if path.suffix in (".so", ".c", ".pyx")]
    assert not re.search(r"amd64|x86_64|arm64|aarch64", (CHECKOUT / f"Dockerfile.{image.program}").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bill_of_materials_names_everything(image: Image) -> None:
    path = image.config["Labels"]["sallyport.sbom"].strip("/")
    bill = json.loads(image.read(path))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == f"sallyport-{image.program}"
    listed = {(one["purl"].partition("/")[0], one["name"], one["version"]) for one in bill["components"]}
    assert len(listed) == len(bill["components"])
    lock = (CHECKOUT / "requirements" / f"{image.program}.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    installed = {
        match[1].lower().replace("_", "-")
        for name in image.files
        if (match := re.fullmatch(rf"{SITE}/([^/]+)-[^/-]+\.dist-info", name))
    }
    assert installed - {"sallyport"} == {name for kind, name, _ in listed if kind == "pkg:pypi"}
    assert all(locked[name] == version for kind, name, version in listed if kind == "pkg:pypi")
    debian = {name for kind, name, _ in listed if kind == "pkg:deb"}
    assert {"libc6", "libssl3", "python3.11-minimal", "ca-certificates"} <= debian
    assert ("libnftables1" in debian) == (image.program == "egress")
    assert debian == {Path(name).name for name in image.files if name.startswith("var/lib/dpkg/status.d/")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_labels_and_user(image: Image) -> None:
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"].startswith("Sallyport ")
    assert {"org.opencontainers.image.description", "org.opencontainers.image.version",
            "org.opencontainers.image.revision"} <= set(labels)  # fmt: skip
    # The sidecar changes the kernel's tables: uid 0 with one capability, and gives up all else by itself.
    assert image.config["User"] == {"egress": "", "ingress": "65532:65532"}[image.program]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("image", ["egress"], indirect=True)
def test_put_together_again_it_is_the_same(image: Image) -> None:
    tag = build(image.program, f"sallyport-{image.program}-build:test", "--target", "build")
    run = ["run", "--rm", "--network", "none", "--entrypoint", "python3", tag, "-c", AGAIN, image.program]
    first, *differing, second = docker(*run).stdout.split()
    assert differing == []
    assert first == second
    assert int(first) > 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_module_finds_what_it_imports(image: Image) -> None:
    """Of the standard library only part is there; a late import would fail in production, and not before."""
    code = (
        "import importlib, pkgutil, sys\n"
        "def failed(name): raise ImportError(name)\n"
        "for package in ('policies', sys.argv[1]):\n"
        "    top = importlib.import_module(package)\n"
        "    for module in pkgutil.walk_packages(top.__path__, f'{package}.', failed):\n"
        "        if not module.name.endswith('__main__'): print(importlib.import_module(module.name).__name__)\n"
    )
    run = ["run", "--rm", "--network", "none", "--entrypoint", "/opt/venv/bin/python", image.tag]
    found = docker(*run, "-c", code, image.program).stdout.split()
    assert len(found) > 50
    missing = docker(*run, "-c", "import tkinter", check=False)
    assert "No module named 'tkinter'" in missing.stderr, "the control"
