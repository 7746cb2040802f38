"""What a kubelet does with an injected pod, as far as that is done by hand, and a pod that tells what it can reach."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.pure.kubernetes.pods import container, pod

RULES = {
    "egress": [{"action": "allow", "target": "api.example.com", "ports": [80], "comment": "costs $(SALLYPORT_MODE) $$"}]
}
# Prints one line a target: its name and what came of connecting to it.
KNOCK = """
import socket, sys
for target in sys.argv[1:]:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        print(target, "connected")
    except OSError as error:
        print(target, type(error).__name__)
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    print("raw allowed")
except PermissionError:
    print("raw denied")
"""
TARGETS = ["api.example.com:80", "other.example.com:80", "198.51.100.20:80", "api.example.com:8080"]
ENFORCED = {
    "api.example.com:80": "connected", "other.example.com:80": "gaierror", "198.51.100.20:80": "ConnectionRefusedError",
    "api.example.com:8080": "ConnectionRefusedError", "raw": "denied",
}  # fmt: skip
OPEN = dict.fromkeys(TARGETS, "connected") | {"raw": "allowed"}


def knocking() -> dict[str, Any]:
    """A pod, not yet injected, whose init container and container both knock at `TARGETS`."""
    knock = ["/usr/bin/python3", "-I", "-c", KNOCK, *TARGETS]
    return pod(json.dumps(RULES), initContainers=[container("first", command=knock)],
               containers=[container("app", command=knock)])  # fmt: skip


def outcomes(lines: str) -> dict[str, str]:
    """What a knocking container printed."""
    return dict(line.split(" ") for line in lines.splitlines())


def environment(one: dict[str, Any], document: dict[str, Any]) -> dict[str, str]:
    """The variables as a kubelet makes them: fields looked up, `$$` and `$(NAME)` expanded."""
    found: dict[str, str] = {}
    for entry in one["env"]:
        if "valueFrom" in entry:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
            found[entry["name"]] = document["metadata"]["name"]
        else:
            found[entry["name"]] = re.sub(
                r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))",
                lambda match: "$" if match[1] == "$" else found.get(match[2], match[0]),
                entry["value"],
            )
    return found
