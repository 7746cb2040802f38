"""What is read of an inspected container, what speaks against guarding it, and what a label says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from egress.docker.containers import LABEL, LabelError, objection, policy_of, read, stranger

if TYPE_CHECKING:
    from pathlib import Path


def document(**host: Any) -> dict[str, Any]:
    """As the daemon answers for an ordinary container on the watched network."""
    return {
        "Id": "3f4e" * 16,
        "Name": "/box",
        "State": {"Running": True, "Pid": 4711, "StartedAt": "2026-01-02T03:04:05.6Z"},
        "Config": {"Labels": {LABEL: "web-only"}},
        "HostConfig": {"NetworkMode": "sallyport", "CapAdd": None, "Runtime": "runc", **host},
        "NetworkSettings": {"Networks": {"sallyport": {}}},
        "Mounts": [],
    }


def test_an_ordinary_container_is_guarded() -> None:
    container = read(document())
    assert (container.name, container.label, container.pid) == ("box", "web-only", 4711)
    assert objection(container) == ""
    assert stranger(container, "sallyport") == ""
    assert container.raw


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({"NetworkMode": "host"}, "shares the host's network"),
        ({"NetworkMode": "container:0123"}, "joined another container's network"),
        ({"Privileged": True}, "privileged"),
        ({"CapAdd": ["CAP_NET_ADMIN"]}, "NET_ADMIN"),
        ({"CapAdd": ["sys_admin"]}, "SYS_ADMIN"),
        ({"CapAdd": ["ALL"]}, "every capability"),
        ({"PidMode": "host"}, "--pid host"),
        ({"PidMode": "container:0123"}, "--pid container:0123"),
        ({"Runtime": "runsc"}, "network stack of its own"),
        ({"Runtime": "kata-runtime"}, "network stack of its own"),
    ],
)
def test_what_would_undo_a_guard_is_named(host: dict[str, Any], words: str) -> None:
    reason = objection(read(document(**host)))
    assert words in reason
    assert reason.isprintable()


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/containerd",
        "/var/run/podman/",
        "/proc",
        "/dev/",
        "/run",
    ],
)
def test_the_host_is_not_to_be_given(source: str) -> None:
    inspected = document() | {"Mounts": [{"Type": "bind", "Source": source, "Destination": "/x"}]}
    assert source in objection(read(inspected))


@pytest.mark.parametrize("source", ["/srv/work", "/home/me", "/var/lib/app", "/etc/app.conf"])
def test_ordinary_folders_are(source: str) -> None:
    inspected = document() | {"Mounts": [{"Type": "bind", "Source": source}, {"Type": "volume", "Source": "/"}]}
    assert objection(read(inspected)) == ""


@pytest.mark.parametrize(("dropped", "raw"), [([], True), (["NET_RAW"], False), (["all"], False), (["CHOWN"], True)])
def test_raw_sockets_are_there_until_they_are_dropped(dropped: list[str], *, raw: bool) -> None:
    assert read(document(CapDrop=dropped)).raw is raw


def test_other_networks_are_named() -> None:
    inspected = document()
    inspected["NetworkSettings"] = {"Networks": {"sallyport": {}, "backend": {}}}
    assert stranger(read(inspected), "sallyport") == "backend"
    assert stranger(read(document(NetworkMode="none")), "sallyport") == ""


@pytest.mark.parametrize("inspected", [{}, {"State": None, "HostConfig": None}, {"State": {"Running": True}}])
def test_what_the_daemon_leaves_out_is_no_fault(inspected: dict[str, Any]) -> None:
    assert read(inspected).pid == 0


def test_a_label_is_json_a_preset_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("egress:\n  - {action: allow, target: api.example.com}\n")
    inline = policy_of(' {"egress": [{"action": "allow", "target": "api.example.com"}]} ')
    assert (inline.source, inline.path) == ("label", "")
    assert policy_of(str(path)).policy == inline.policy
    assert policy_of(str(path)).path == str(path)
    assert policy_of("web-only").source == "preset web-only"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("", "neither JSON nor the absolute path"),
        ("policy.yaml", "neither JSON nor the absolute path"),
        ("{", "label sallyport.policy:"),
        ('{"egress": [{"action": "allow", "target": "a..b"}]}', "$.egress[0].target"),
        ("/no/such/file.json", "there is no such file on the host"),
        ("/dev/null", "is not a regular file"),
        ("evil\nname", "'evil name'"),
    ],
)
def test_another_label_is_refused_with_the_place(label: str, words: str) -> None:
    with pytest.raises(LabelError) as caught:
        policy_of(label)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_faulty_file_is_named_with_the_place_in_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"egress": [{"action": "perhaps", "target": "api.example.com"}]}')
    with pytest.raises(LabelError, match=r"policy.json: \$.egress\[0\].action"):
        policy_of(str(path))
