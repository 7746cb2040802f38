"""Runs under the SDK's own interpreter: reads calls as JSON lines, makes them, tells what came of each.

drive.py HOST:PORT KEY. A call is {"do": "create" | "run" | ..., "box": NAME, ...}; an answer is {"value", "seconds"} or
{"fault", "text"}.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from datetime import timedelta
from typing import Any

logging.disable(logging.CRITICAL)
Sandbox = importlib.import_module("opensandbox.sync.sandbox").SandboxSync
Config = importlib.import_module("opensandbox.config.connection_sync").ConnectionConfigSync
models = importlib.import_module("opensandbox.models.sandboxes")
boxes: dict[str, Any] = {}
PATIENCE = timedelta(minutes=2)  # the SDK's own half a minute is short on a busy machine


def config(proxied: bool) -> Any:
    _, domain, key = sys.argv
    return Config(
        domain=domain,
        api_key=key,
        protocol="http",
        use_server_proxy=proxied,
        disable_metrics=True,
        request_timeout=PATIENCE,
    )


def rules(told: list[dict[str, str]]) -> list[Any]:
    return [models.NetworkRule(**rule) for rule in told]


def create(box: str, image: str, policy: Any = None, proxied: bool = False, **more: Any) -> dict[str, Any]:
    if policy is not None:
        more["network_policy"] = models.NetworkPolicy(
            defaultAction=policy.get("defaultAction"), egress=rules(policy.get("egress", []))
        )
    if more.pop("vault", False):
        more["credential_proxy"] = models.CredentialProxyConfig(enabled=True)
    boxes[box] = Sandbox.create(
        image, timeout=timedelta(minutes=10), ready_timeout=PATIENCE, connection_config=config(proxied), **more
    )
    return {"id": boxes[box].id}


def run(box: str, command: str, background: bool = False) -> dict[str, Any]:
    options = importlib.import_module("opensandbox.models.execd").RunCommandOpts(background=background)
    done = boxes[box].commands.run(command, opts=options)
    return {
        "code": done.exit_code,
        "out": "".join(message.text for message in done.logs.stdout),
        "err": "".join(message.text for message in done.logs.stderr),
    }


def policy(box: str) -> Any:
    return boxes[box].get_egress_policy().model_dump(by_alias=True)


def patch(box: str, rules_: list[dict[str, str]]) -> None:
    boxes[box].patch_egress_rules(rules(rules_))


def delete(box: str, targets: list[str]) -> None:
    boxes[box].delete_egress_rules(targets)


def endpoint(box: str, port: int) -> str:
    return str(boxes[box].get_endpoint(port).endpoint)


def info(box: str) -> dict[str, Any]:
    told = boxes[box].get_info()
    return {"state": told.status.state, "expires": told.expires_at.timestamp()}


def renew(box: str, seconds: float) -> float:
    return float(boxes[box].renew(timedelta(seconds=seconds)).expires_at.timestamp())


def pause(box: str) -> None:
    boxes[box].pause()


def resume(box: str) -> None:
    boxes[box] = Sandbox.resume(boxes[box].id, resume_timeout=PATIENCE, connection_config=config(proxied=False))


def kill(box: str) -> None:
    boxes.pop(box).destroy()


CALLS = {
    call.__name__: call for call in (create, run, policy, patch, delete, endpoint, info, renew, pause, resume, kill)
}

for line in sys.stdin:
    asked = json.loads(line)
    began = time.perf_counter()
    try:
        value = CALLS[asked.pop("do")](**asked)
        answer = {"value": value, "seconds": time.perf_counter() - began}
    except Exception as error:  # noqa: BLE001 - the test is told, whatever it was
        answer = {"fault": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
