"""`egress inject` as a person calls it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from egress.kubernetes.documents import read
from policies import presets
from policies.parser import parse_policy
from tests.pure.commands.calling import egress, quick
from tests.pure.kubernetes.pods import POLICY, pod, sidecar, variables

if TYPE_CHECKING:
    from pathlib import Path

RULES = "OPENSANDBOX_EGRESS_RULES"
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rules"}, "data": {"policy.json": POLICY}}


def written(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "in.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_from_standard_input_to_standard_output() -> None:
    done = egress("inject", "-f", "-", stdin=json.dumps(pod()).encode())
    assert (done.returncode, done.stderr) == (0, "")
    (made,) = read(done.stdout.encode())
    assert sidecar(made)["name"] == "egress"
    again = egress("inject", "-f", "-", stdin=done.stdout.encode())
    assert again.stdout == done.stdout


def test_documents_without_a_pod_pass_and_are_named(tmp_path: Path) -> None:
    done = quick("inject", "-f", written(tmp_path, CONFIG, pod()))
    assert done.returncode == 0
    assert [made["kind"] for made in read(done.stdout.encode())] == ["ConfigMap", "Pod"]
    assert "ConfigMap/rules: no pod in it" in done.stderr
    alone = quick("inject", "-f", written(tmp_path, CONFIG))
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "no pod in any document" in alone.stderr


def test_one_fault_and_nothing_is_printed(tmp_path: Path) -> None:
    bad = pod(hostNetwork=True, hostPID=True)
    done = quick("inject", "-f", written(tmp_path, pod(), bad))
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[3] for line in done.stderr.splitlines()] == ["spec.hostNetwork", "spec.hostPID"]
    assert all("in.yaml: Pod/box: " in line for line in done.stderr.splitlines())


def test_a_policy_in_the_same_stream_is_checked(tmp_path: Path) -> None:
    named = pod(None, {"sallyport.dev/policy-from": "configmap/rules"})
    done = quick("inject", "-f", written(tmp_path, CONFIG, named))
    assert done.returncode == 0
    assert "not checked" not in done.stderr
    assert "not checked" in quick("inject", "-f", written(tmp_path, named)).stderr  # the control
    wrong = {**CONFIG, "data": {"policy.json": '{"egress": [{"action": "alow", "target": "a.example.com"}]}'}}
    done = quick("inject", "-f", written(tmp_path, named, wrong))
    assert done.returncode == 2
    assert "configmap/rules/policy.json: $.egress[0].action: " in done.stderr


def test_the_policy_flag_is_written_down_where_the_next_one_finds_it(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("egress:\n- {action: allow, target: A.example.com}\n")
    given = pod(None, {"sallyport.dev/policy-from": "configmap/rules"})
    for name, annotation in (("web-only", "web-only"), (str(policy), None)):
        made = quick("inject", "--policy", name, "-f", written(tmp_path, given))
        (document,) = read(made.stdout.encode())
        notes = document["metadata"]["annotations"]
        assert notes["sallyport.dev/policy"] == (annotation or parse_and_compact(policy.read_text()))
        assert "sallyport.dev/policy-from" not in notes
        again = quick("inject", "-f", written(tmp_path, document))
        assert read(again.stdout.encode()) == [document]
    preset = parse_policy(presets.text("web-only"), yaml=True)
    (document,) = read(quick("inject", "--policy", "web-only", "-f", written(tmp_path, given)).stdout.encode())
    assert parse_policy(variables(sidecar(document))[RULES]) == preset


def parse_and_compact(text: str) -> str:
    from egress.kubernetes.policy import compact

    return compact(parse_policy(text, yaml=True))


def test_the_operators_flags(tmp_path: Path) -> None:
    done = quick("inject", "--json", "--image", "registry.example.com/e:1", "--pull-policy", "Always",
                 "--port", "19000", "--dns-upstream", "10.0.0.10,[2001:db8::1]:53", "--token-from", "secret/keys",
                 "--requests", "cpu=20m,memory=32Mi", "--limits", "", "--env",
                 "OPENSANDBOX_EGRESS_ALWAYS_ALLOW=collector.example.com:4318",
                 "-f", written(tmp_path, pod()))  # fmt: skip
    made = sidecar(json.loads(done.stdout))
    assert (made["image"], made["imagePullPolicy"]) == ("registry.example.com/e:1", "Always")
    assert made["resources"] == {"requests": {"cpu": "20m", "memory": "32Mi"}}
    found = variables(made)
    assert found["OPENSANDBOX_EGRESS_DNS_UPSTREAM"] == "10.0.0.10,[2001:db8::1]:53"
    assert found["OPENSANDBOX_EGRESS_HTTP_ADDR"] == ":19000"
    assert found["OPENSANDBOX_EGRESS_ALWAYS_ALLOW"] == "collector.example.com:4318"
    assert made["startupProbe"]["httpGet"]["port"] == made["ports"][0]["containerPort"] == 19000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "-f/--file"),
        (("-f", "missing.yaml"), "missing.yaml: no such file"),
        (("-f", "/"), "/: is a directory"),
        (("-f", "a\0b"), "null byte"),
        (("--image", "a b"), "--image: 'a b' is no image's name"),
        (("--port", "0"), "--port: '0' is no port"),
        (("--dns-upstream", "127.0.0.1"), "--dns-upstream: '127.0.0.1' is a loopback address"),
        (("--dns-upstream", "dns.example.com"), "--dns-upstream: 'dns.example.com' is not an IP address"),
        (("--token-from", "keys"), "write secret/NAME"),
        (("--requests", "cpu=lots"), "--requests: 'cpu=lots': write it like"),
        (("--policy", "web-onyl"), "web-onyl: neither a file nor a preset"),
        (("--polic", "web-only"), "unrecognized"),
        (("--env", "LOG_LEVEL=warn"), "--env: 'LOG_LEVEL=warn': write it like OPENSANDBOX_EGRESS_LOG_LEVEL=warn"),
        (("--env", "OPENSANDBOX_EGRESS_LOG_LEVEL=loud"), "--env: OPENSANDBOX_EGRESS_LOG_LEVEL: unknown level 'loud'"),
        (("--env", "OPENSANDBOX_EGRESS_LOG_LEVL=warn"), "unknown variables, ignored: OPENSANDBOX_EGRESS_LOG_LEVL"),
        (("--env", "OPENSANDBOX_EGRESS_MODE=dns"), "--env: OPENSANDBOX_EGRESS_MODE is set by the injection itself"),
    ],
)
def test_a_call_that_is_wrong_is_told_in_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    given = arguments if not arguments or "-f" in arguments else (*arguments, "-f", written(tmp_path, pod()))
    done = quick("inject", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_manifest(tmp_path: Path) -> None:
    for text, words in (
        ("a: [", "line 1"),
        ("a: yes", "line 1: yes"),
        ("a: b", "apiVersion: is missing"),
        ("x", "no object"),
    ):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        done = quick("inject", "-f", str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


def test_the_webhook_refuses_to_start_with_what_cannot_serve(tmp_path: Path) -> None:
    missing = quick("webhook", "--tls-cert", str(tmp_path / "no.crt"), "--tls-key", str(tmp_path / "no.key"))
    assert missing.returncode == 2
    assert "no.crt: no such file or directory" in missing.stderr
    for text in ("builds", "=web-only", "a_b=web-only"):
        assert "write it like builds=" in quick("webhook", "--policy-for", text).stderr
    assert "neither a file nor a preset" in quick("webhook", "--policy-for", "builds=web-onyl").stderr
    (tmp_path / "x").write_text("x")
    assert "is not PEM" in quick("webhook", "--tls-cert", str(tmp_path / "x"), "--tls-key", str(tmp_path / "x")).stderr
