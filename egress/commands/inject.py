"""`egress inject`: Kubernetes manifests with the sidecar in every pod."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from egress.commands.output import GOOD, CommandError, Outcome, Parser, reason_of, run

if TYPE_CHECKING:
    import argparse

    from egress.kubernetes.settings import Reference, Settings

EPILOG = """\
examples:
  egress inject -f pod.yaml | kubectl apply -f -
      the pod's annotations say what it may reach:
        sallyport.dev/policy: web-only                       a preset
        sallyport.dev/policy: '{egress: [{action: allow, target: api.example.com}]}'
        sallyport.dev/policy-from: configmap/NAME[/KEY]      JSON, key policy.json; or secret/...
        sallyport.dev/token-from: secret/NAME[/KEY]          who has it changes the policy; key token
      without any of the first three, everything is denied
  egress inject --policy policy.yaml -f deployment.yaml
      sets the annotation first; a file or a preset
  kustomize build . | egress inject --image registry.example.com/sallyport-egress:1.2 -f -
      from standard input; documents without a pod pass as they are

Pods are guarded wherever they stand: Pod, PodTemplate, Deployment, StatefulSet, DaemonSet, ReplicaSet,
ReplicationController, Job, CronJob, BatchSandbox, Pool, Sandbox, SandboxTemplate, in one document, several, or a List.
The other containers lose NET_RAW and NET_ADMIN. Done twice, it is done once. Comments in YAML are not kept.

exit code: 0 done, 2 a document cannot be read or cannot be guarded: every reason is named with its place, nothing is
printed.
"""


def main(argv: list[str]) -> int:
    """Print the guarded manifests; returns the exit code."""
    return run("inject", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.commands.injecting import settings_of
    from egress.kubernetes import documents
    from egress.kubernetes.faults import Refused
    from egress.kubernetes.places import label_of

    settings = settings_of(options)
    policy = _policy(options.policy) if options.policy else ""
    sources = [(label, document) for name in options.files for label, document in _read(name)]
    every = [document for _, document in sources]
    made, remarks, faults, count = [], [], [], 0
    for label, document in sources:
        what = f"{label}: {label_of(document)}"
        try:
            guarded = _inject(document, every, settings, policy)
        except Refused as refused:
            faults += [f"egress inject: {what}: {fault}" for fault in refused.faults]
            continue
        count += guarded.pods
        made.append(guarded.document)
        remarks += [f"{what}: {warning}" for warning in guarded.warnings]
        if not guarded.pods:
            remarks.append(f"{what}: no pod in it, left as it is")
    if faults:
        return Outcome(2, "", tuple(faults))
    if not count:
        raise CommandError("no pod in any document; name a file with a Pod, a Deployment, ... (egress inject --help)")
    return Outcome(GOOD, documents.write(made, as_json=options.json), tuple(remarks))


def _inject(document: dict[str, Any], every: list[dict[str, Any]], settings: Settings, policy: str) -> Any:
    from egress.kubernetes import documents
    from egress.kubernetes.inject import inject

    if policy:
        document = _annotated(document, policy)
    metadata = document.get("metadata")
    namespace = (metadata.get("namespace") if isinstance(metadata, dict) else None) or "default"

    def lookup(reference: Reference) -> str | None:
        return documents.configured(every, reference, str(namespace))

    return inject(document, settings, lookup)


def _annotated(document: dict[str, Any], policy: str) -> dict[str, Any]:
    """The document with the annotation that --policy stands for: whoever guards it later finds it there."""
    from copy import deepcopy

    from egress.kubernetes.places import pods
    from egress.kubernetes.settings import POLICY, POLICY_FROM

    made = deepcopy(document)
    for pod in pods(made):
        metadata = pod.object("metadata")
        annotations = metadata.object("annotations").value
        annotations.pop(POLICY_FROM, None)
        annotations[POLICY] = policy
        metadata.value["annotations"] = annotations
        pod.value["metadata"] = metadata.value
    return made


def _policy(text: str) -> str:
    """A preset's name, or a file's policy on one line."""
    from egress.commands.reading import load
    from egress.kubernetes.policy import compact
    from policies import presets

    policy = load(text)
    return text if text in presets.names() and not os.path.isfile(text) else compact(policy)


def _read(name: str) -> list[tuple[str, dict[str, Any]]]:
    from egress.kubernetes import documents

    label = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(documents.LIMIT + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(documents.LIMIT + 1)
        return [(label, document) for document in documents.read(data)]
    except OSError as error:
        raise CommandError(f"{label}: {reason_of(error)}") from None
    except ValueError as error:  # DocumentError, or a name with a NUL in it
        raise CommandError(f"{label}: {error}") from None


def _parser() -> Parser:
    from egress.commands.injecting import add_settings

    parser = Parser(
        "egress inject",
        "egress inject [OPTION ...] -f FILE|- [-f FILE ...]",
        "Print Kubernetes manifests with the sidecar in every pod, before all its other containers.",
        EPILOG,
    )
    add = parser.add_argument
    add("-f", "--file", dest="files", metavar="FILE|-", action="append", required=True, help="YAML or JSON")
    add("--policy", metavar="FILE|PRESET", default="", help="the policy of every pod, instead of its annotations")
    add("--json", action="store_true", help="print JSON instead of YAML")
    add_settings(parser)
    return parser
