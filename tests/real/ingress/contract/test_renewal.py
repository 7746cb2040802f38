"""Renew intents from a request to a real Redis, by the flags that OpenSandbox starts its own gateway with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import soon
from tests.real.ingress.renew.conftest import redis  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.ingress.hostile.ground import Origin
    from tests.real.ingress.renew.conftest import RealRedis

KEY = "some:other:key"
HERE: dict[str, object] = {"host": "127.0.0.1"}
SANDBOXES: dict[str, dict[str, object]] = {
    **dict.fromkeys(("one", "two", "three", "skips", "last"), HERE),
    "locked": {**HERE, "secure_access_token": "secret"},
    "sleepy": {**HERE, "ready": False},
}


def flags(redis: RealRedis, *more: str) -> list[str]:  # noqa: F811
    return [
        *("--renew-intent-enabled", "--renew-intent-redis-dsn", redis.url, "--renew-intent-queue-key", KEY),
        *("--workers", "2", *more),
    ]


def get(gate: Gateway, target: str, *lines: str) -> int:
    head = "\r\n".join([f"GET {target} HTTP/1.1", "Host: app.test", *lines, "Connection: close", "", ""])
    return gate.ask(head.encode()).status


def test_one_for_each_sandbox_and_what_is_in_it(
    redis: RealRedis,  # noqa: F811
    tmp_path: Path,
    echoing: Origin,
) -> None:
    port = echoing.port
    with Gateway(tmp_path, *flags(redis), sandboxes=SANDBOXES) as gate:
        assert get(gate, "/skipped", f"OpenSandbox-Ingress-To: skips-{port}", "OpenSandbox-Access-Renew: skip") == 200
        assert get(gate, "/", f"OpenSandbox-Ingress-To: locked-{port}") == 401
        assert get(gate, "/", f"OpenSandbox-Ingress-To: sleepy-{port}") == 503
        assert get(gate, "/", f"OpenSandbox-Ingress-To: nobody-{port}") == 404
        for _ in range(5):
            assert get(gate, "/a/b?c=d", f"OpenSandbox-Ingress-To: one-{port}") == 200
            assert get(gate, f"/two/{port}/a/b?c=d") == 200
            assert get(gate, f"/three/{port}") == 200
        assert get(gate, f"/last/{port}/") == 200

        def told() -> dict[str, dict[str, Any]]:
            found = redis.intents(KEY)
            assert len({intent["sandbox_id"] for intent in found}) == len(found), found
            return {intent["sandbox_id"]: intent for intent in found}

        assert soon(lambda: "last" in told())
        intents = told()
    assert sorted(intents) == ["last", "one", "three", "two"]
    assert {intent["port"] for intent in intents.values()} == {port}
    assert "request_uri" not in intents["one"]
    assert intents["two"]["request_uri"] == "/a/b"
    assert intents["three"]["request_uri"] == "/"
    for intent in intents.values():
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", intent["observed_at"])


def test_the_list_is_kept_short(redis: RealRedis, tmp_path: Path, echoing: Origin) -> None:  # noqa: F811
    more = ("--renew-intent-queue-max-len", "2", "--renew-intent-min-interval", "0")
    with Gateway(tmp_path, *flags(redis, *more), sandboxes=SANDBOXES) as gate:

        def newest() -> str:
            return str(next((intent["sandbox_id"] for intent in redis.intents(KEY)), ""))

        for name in ("one", "two", "three"):
            assert get(gate, f"/{name}/{echoing.port}/") == 200
            assert soon(lambda: newest() == name)  # noqa: B023 - asked within this turn
        assert [intent["sandbox_id"] for intent in redis.intents(KEY)] == ["three", "two"]
