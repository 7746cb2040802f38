"""The Kubernetes providers against an API server over real HTTP, in good and in bad health."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ingress.providers import ProviderError, ProviderSettings, build
from ingress.providers import kubeclient as client
from ingress.routes import Ambiguous, Sandbox
from tests.real.ingress.providers.fake_kubernetes import FakeKubernetes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ingress.providers.base import Provider, Say
    from ingress.routes import Routes

    Scenario = Callable[[FakeKubernetes], Awaitable[None]]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Callable[[Routes, Say], Provider]]:
    """How to make a provider for a server."""

    def for_server(
        server: FakeKubernetes,
        kind: str = "batchsandbox",
        namespaces: tuple[str, ...] = (),
        keep: float = 0,
        **user: object,
    ) -> Callable[[Routes, Say], Provider]:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig(**user))
        settings = ProviderSettings(kubeconfig=str(path), namespaces=namespaces, keep=keep)
        return lambda routes, say: build(kind, settings, routes, say)

    return for_server


def play(scenario: Scenario, **arguments: Any) -> None:
    async def run() -> None:
        async with FakeKubernetes(**arguments) as server:
            await scenario(server)

    asyncio.run(run())


def test_what_is_there_is_listed_and_each_change_is_followed(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a", annotations={"opensandbox.io/secure-access-token": " s3cret "})
        server.put("b", status={"replicas": 2, "ready": 0})
        async with following(make(server)) as followed:
            await following.until(lambda: followed.ids() == ["a", "b"])
            assert followed.routes.find("a") == Sandbox(
                "a",
                "10.0.0.7",
                token="s3cret",
                incarnation="uid-default-a",
                namespace="default",
                addresses=("10.0.0.7",),
            )
            assert followed.routes.find("b").reason == "none of its pods is ready (0 of 2)"
            await following.until(lambda: server.watching)
            server.ready("b", "fd00::8")
            await following.until(lambda: followed.routes.find("b").ready)
            assert followed.routes.find("b").host == "fd00::8"
            server.delete("a")
            await following.until(lambda: followed.ids() == ["b"])
            server.ready("c")
            await following.until(lambda: followed.ids() == ["b", "c"])
            assert followed.provider.health() == (True, "", f"{server.url}: batchsandboxes.sandbox.opensandbox.io")
            assert len(server.lists) == len(server.watches) == 1
            assert server.watches[0]["allowWatchBookmarks"] == "true"
            assert 0 < int(server.watches[0]["timeoutSeconds"]) <= client.WATCH

    play(scenario)


def test_a_long_list_comes_in_pages(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        for number in range(1201):
            server.ready(f"s{number:04}")
        async with following(make(server)) as followed:
            await following.until(lambda: len(followed.routes) == 1201)
            assert [page.get("limit") for page in server.lists] == ["500"] * 3
            assert len({page.get("continue") for page in server.lists}) == 3

    play(scenario)


def test_a_list_that_grows_too_old_between_pages_is_begun_again(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        for number in range(1201):
            server.ready(f"s{number:04}")
        server.pages_until_old = 1
        async with following(make(server)) as followed:
            await following.until(lambda: len(followed.routes) == 1201)
            assert len(server.lists) == 5  # one, its refused continuation, and three

    play(scenario)


def test_a_watch_that_ends_goes_on_from_where_it_was(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.ready("b")
            await following.until(lambda: followed.ids() == ["a", "b"])
            server.finish()
            await following.until(lambda: len(server.watches) == 2 and server.watching)
            assert server.watches[1]["resourceVersion"] == str(server.version)
            server.delete("a")
            await following.until(lambda: followed.ids() == ["b"])
            assert len(server.lists) == 1
            assert not [words for level, words in followed.said if level != "info"]

    play(scenario)


def test_a_bookmark_moves_the_version_on(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.version += 50  # what happened to other kinds
            server.event("BOOKMARK", {"metadata": {"resourceVersion": str(server.version)}})
            server.finish()
            await following.until(lambda: len(server.watches) == 2)
            assert server.watches[1]["resourceVersion"] == str(server.version)
            assert followed.ids() == ["a"]

    play(scenario)


@pytest.mark.parametrize("half", [b"", b'{"type":"DELETED","object":{"metad'])
def test_a_reset_in_the_middle_loses_nothing(following: Any, make: Any, half: bytes) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.cut(half)
            server.ready("b")  # while nobody watches
            await following.until(lambda: followed.ids() == ["a", "b"])
            assert len(server.lists) == 1
            assert not [change for change in followed.changes if change[2] is None], "a route was dropped"

    play(scenario)


@pytest.mark.parametrize("how", ["status", "event"])
def test_410_is_answered_with_a_new_list(following: Any, make: Any, how: str) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        server.ready("b")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            if how == "status":
                server.finish()
            else:
                server.event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            server.quietly_delete("a")
            server.ready("c")
            server.compact()
            await following.until(lambda: followed.ids() == ["b", "c"])
            assert len(server.lists) == 2
            await following.until(lambda: server.watching)
            server.ready("d")
            await following.until(lambda: followed.ids() == ["b", "c", "d"])

    play(scenario)


def test_duplicates_and_late_words_change_nothing(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        old = server.ready("a", "10.0.0.1")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            old = {**old, "metadata": dict(old["metadata"])}
            server.ready("a", "10.0.0.2")
            await following.until(lambda: followed.routes.find("a").host == "10.0.0.2")
            changes = len(followed.changes)
            server.event("ADDED", server.objects["default", "a"])
            server.event("MODIFIED", old)  # an older version of the same object
            server.event("DELETED", {"metadata": {"name": "a", "namespace": "default", "uid": "an earlier owner"}})
            server.event("DELETED", {"metadata": {"name": "unheard", "namespace": "default"}})
            server.ready("z")
            await following.until(lambda: followed.ids() == ["a", "z"])
            assert followed.routes.find("a").host == "10.0.0.2"
            assert len(followed.changes) == changes + 1

    play(scenario)


def test_the_next_owner_of_a_name_is_another_incarnation(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a", uid="first")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.delete("a")
            server.ready("a", uid="second")
            await following.until(lambda: followed.routes.find("a").incarnation == "second")
            server.put("a", uid="second", deletionTimestamp="2026-01-01T00:00:00Z", status={"ready": 1})
            await following.until(lambda: followed.routes.find("a") is None)

    play(scenario)


def test_a_name_in_two_namespaces_is_ambiguous_until_one_goes(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a", "10.0.0.1", "one")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.ready("a", "10.0.0.2", "two")
            await following.until(lambda: isinstance(followed.routes.find("a"), Ambiguous))
            assert followed.routes.find("a").where == ("one", "two")
            assert followed.routes.find_in("two", "a").host == "10.0.0.2"
            assert followed.routes.find_in("three", "a") is None
            server.delete("a", "one")
            await following.until(lambda: isinstance(followed.routes.find("a"), Sandbox))
            assert followed.routes.find("a").host == "10.0.0.2"

    play(scenario)


def test_only_the_namespaces_asked_for_are_watched(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        for namespace in ("one", "two", "three"):
            server.ready(namespace, "10.0.0.1", namespace)
        async with following(make(server, namespaces=("one", "two"))) as followed:
            await following.until(lambda: followed.ids() == ["one", "two"])
            await following.until(lambda: server.watching == 2)
            assert followed.provider.health().source.endswith(" in one, two")
            server.cut()
            server.ready("more", "10.0.0.2", "two")
            server.compact()
            await following.until(lambda: followed.ids() == ["more", "one", "two"])

    play(scenario)


def test_i11_the_last_routes_go_on_while_the_api_server_is_gone(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            assert not followed.provider.health().degraded  # the control
            await server.pause()
            await following.until(lambda: followed.provider.health().degraded)
            assert followed.provider.health().loaded
            assert "the last routes go on (1)" in followed.provider.health().degraded
            assert followed.ids() == ["a"]
            server.ready("b")
            await server.start()
            await following.until(lambda: followed.ids() == ["a", "b"])
            assert not followed.provider.health().degraded
            assert not [change for change in followed.changes if change[2] is None], "a route was dropped"

    play(scenario)


def test_i11_routes_that_nobody_vouches_for_are_dropped_in_the_end(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server, keep=0.5)) as followed:
            await following.until(lambda: server.watching)
            server.down = 503
            server.cut()
            await following.until(lambda: followed.provider.health().degraded)
            assert followed.ids() == ["a"]
            await following.until(lambda: followed.ids() == [])
            server.down = 0
            await following.until(lambda: followed.ids() == ["a"])
            assert not followed.provider.health().degraded

    play(scenario)


@pytest.mark.parametrize(
    "line",
    [b"{{{\n", b"[]\n", b'{"type":"ADDED","object":{}}\n', b'{"type":"ADDED"}\n', b'{"type":"DANCED","object":{}}\n'],
)
def test_garbage_is_answered_with_a_new_list(following: Any, make: Any, line: bytes) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        async with following(make(server)) as followed:
            await following.until(lambda: server.watching)
            server.send(line)
            await following.until(lambda: len(server.lists) == 2 and server.watching)
            assert [level for level, words in followed.said if "the watch brought" in words or "a name" in words]
            server.ready("b")
            await following.until(lambda: followed.ids() == ["a", "b"])
            assert not followed.provider.health().degraded

    play(scenario)


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("list", 403, "403: not for you; it needs the verbs list and watch"),
        ("list", 401, "its credentials are not accepted"),
        ("list", 500, "500: "),
        ("list", 429, "429: "),
        ("list", 404, "is the CustomResourceDefinition batchsandboxes.sandbox.opensandbox.io installed?"),
        ("watch", 403, "403: not for you"),
    ],
)
def test_a_refusal_is_told_in_words_and_tried_again(
    following: Any, make: Any, what: str, code: int, words: str
) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        server.ready("a")
        server.refusals = [(what, code, "not for you")] * 2
        async with following(make(server)) as followed:
            await following.until(lambda: any(words in said for _, said in followed.said))
            assert followed.provider.health().loaded == (what == "watch")
            await following.until(lambda: followed.ids() == ["a"] and not followed.provider.health().degraded)

    play(scenario)


def test_a_server_that_never_answers_is_told_and_left(
    following: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER", 0.1)

    async def scenario(server: FakeKubernetes) -> None:
        server.hang = True
        async with following(make(server)) as followed:
            await following.until(lambda: "no answer within" in followed.provider.health().degraded)
            server.hang = False
            server.ready("a")
            await following.until(lambda: followed.ids() == ["a"])

    play(scenario)


def test_a_server_that_ends_watches_at_once_is_not_asked_without_pause(following: Any, make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        async with following(make(server)) as followed:
            loop = asyncio.get_running_loop()
            begun = 0.0
            for number in range(1, 5):
                await following.until(lambda number=number: len(server.watches) == number and server.watching)
                begun = loop.time()  # before the pause can have begun, however late we hear of the end
                server.finish()
                await following.until(lambda: not server.watching)
            await following.until(lambda: server.watching)
            assert loop.time() - begun > 0.2  # 0.1 * 2 ** 3, half of it at the least
            assert not followed.provider.health().degraded

    play(scenario)


def test_a_token_file_is_read_for_each_connection(following: Any, make: Any, tmp_path: Path) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        token = tmp_path / "token"
        token.write_text("one\n")
        server.token = "one"
        server.ready("a")
        async with following(make(server, tokenFile=str(token))) as followed:
            await following.until(lambda: server.watching)
            server.token = "two"
            server.cut()
            await following.until(lambda: "credentials" in followed.provider.health().degraded)
            assert followed.ids() == ["a"]
            token.write_text("two\n")
            await following.until(lambda: not followed.provider.health().degraded)
            assert not [words for _, words in followed.said if "one" in words.split() or "two" in words.split()]

    play(scenario)


def test_an_exec_plugin_is_refused_before_anything_runs(make: Any) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        with pytest.raises(ProviderError, match=r"user.exec: plugins are not run here"):
            make(server, exec={"command": "aws"})(None, None)

    play(scenario)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_agent_sandboxes_are_found_by_their_candidates(following: Any, make: Any, version: str) -> None:
    async def scenario(server: FakeKubernetes) -> None:
        def up(name: str) -> dict[str, object]:
            return {
                "serviceFQDN": f"{name}.default.svc.cluster.local",
                "podIPs": ["10.0.0.9"],
                "conditions": [{"type": "Ready", "status": "True"}],
            }

        server.put("sandbox-42", status=up("sandbox-42"))
        async with following(make(server, "agent-sandbox")) as followed:
            await following.until(lambda: followed.provider.health().loaded)
            assert followed.routes.find("42").host == "sandbox-42.default.svc.cluster.local"
            assert followed.routes.find("42").addresses == ("10.0.0.9",)
            assert followed.routes.find("43") is None
            await following.until(lambda: server.watching)
            server.put("43", status=up("43"))
            await following.until(lambda: followed.routes.find("43"))
            server.put("sandbox-43", status=up("sandbox-43"))  # its DNS-1035 form comes first
            await following.until(lambda: followed.routes.find("43").id == "sandbox-43")

    play(scenario, served=(f"agents.x-k8s.io/{version}/sandboxes",))
