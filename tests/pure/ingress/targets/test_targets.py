"""I4: which addresses are dialled. The class decides after resolution, and what was judged is what is dialled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.targets import KEPT, MOST_NAMES, Targets, is_local_address
from ingress.refusal import Refusal
from policies.address import format_address, parse_address, parse_network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OPEN = ["10.0.0.7", "172.17.0.2", "192.168.1.1", "100.64.0.9", "8.8.8.8", "fd00::7", "2001:db8::1", "64:ff9b::808:808"]
SHUT = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.1.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "::7f00:1",
    "64:ff9b:1::7f00:1",
    "2001:0:7f00:1::",
]


def nowhere(_: bytes) -> bool:
    return False


def refused(work: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        work()
    return caught.value


@pytest.mark.parametrize("host", OPEN)
def test_where_sandboxes_live(host: str) -> None:
    assert Targets(is_local=nowhere).literal(host, 8080) == host


@pytest.mark.parametrize("host", SHUT)
def test_i4_literal_addresses_that_lead_elsewhere(host: str) -> None:
    refusal = refused(lambda: Targets(is_local=nowhere).literal(host, 8080))
    assert (refusal.status, refusal.code) == (502, "forbidden_target")
    # the control: the same address, opened on purpose
    opened = Targets([parse_network("0.0.0.0/0"), parse_network("::/0")], is_local=nowhere)
    assert opened.literal(host, 8080) == format_address(parse_address(host))


def test_a_v4_range_opens_no_v6_spelling_but_the_mapped_one() -> None:
    targets = Targets([parse_network("127.0.0.0/8")], is_local=nowhere)
    assert targets.literal("127.0.0.1", 80) == "127.0.0.1"
    assert targets.literal("::ffff:127.0.0.1", 80) == "127.0.0.1"
    for host in ("64:ff9b::7f00:1", "2002:7f00:1::", "::1", "169.254.1.1"):
        assert refused(lambda host=host: targets.literal(host, 80)).code == "forbidden_target"  # type: ignore[misc]


@pytest.mark.parametrize("host", ["box.svc", "localhost", "2130706433", "0x7f.1", "127.1", "010.0.0.1", "fe80::1%lo"])
def test_what_is_a_name_or_pretends_to_be(host: str) -> None:
    assert Targets().literal(host, 80) is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "10.0.0.7"]
)
def test_i4_the_gateway_itself_whatever_is_opened(host: str) -> None:
    everything = [parse_network("0.0.0.0/0"), parse_network("::/0")]
    here = parse_address("10.0.0.7")
    targets = Targets(everything, [("", 28888), ("127.0.0.1", 28889)], is_local=lambda packed: packed == here)
    for port in (28888, 28889):
        refusal = refused(lambda port=port: targets.literal(host, port))  # type: ignore[misc]
        assert (refusal.status, refusal.code) == (502, "forbidden_target")
        assert "the gateway's own" in refusal.message
    assert targets.literal(host, 8080) is not None, "the control: another port of this machine"
    assert targets.literal("10.0.0.8", 28888) == "10.0.0.8", "the control: this port of another machine"


def test_the_kernel_knows_its_own_addresses() -> None:
    assert is_local_address(parse_address("127.0.0.1"))
    assert not is_local_address(parse_address("192.0.2.1"))


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16))
def test_a_literal_is_dialled_as_it_was_judged(packed: bytes) -> None:
    targets = Targets(is_local=nowhere)
    try:
        dialled = targets.literal(format_address(packed), 80)
    except Refusal:
        return
    assert dialled is not None
    assert targets.why_not(parse_address(dialled), 80) == ""


# -- names -----------------------------------------------------------------------------------------------------------


class Resolver:
    """Answers from a table, and counts."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None
        self.now = 100.0

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if self.gate is not None:
            await self.gate.wait()
        found = self.names.get(host)
        if found is None:
            raise OSError("no such name")
        return found

    def targets(self, *allowed: str) -> Targets:
        networks = [parse_network(text) for text in allowed]
        return Targets(networks, [("", 28888)], lookup=self, clock=lambda: self.now, is_local=nowhere)


def test_a_name_gives_every_address_that_may_be_dialled() -> None:
    resolver = Resolver(box=["10.0.0.1", "127.0.0.1", "fd00::1", "10.0.0.1"])
    assert asyncio.run(resolver.targets().resolve("box", 80)) == ["10.0.0.1", "fd00::1"]


@pytest.mark.parametrize("address", [*SHUT, "fe80::1%eth0"])
def test_i4_a_name_that_resolves_to_what_is_shut(address: str) -> None:
    with pytest.raises(Refusal) as caught:
        asyncio.run(Resolver(evil=[address]).targets().resolve("evil", 80))
    assert caught.value.code == "forbidden_target"


def test_i4_rebinding_changes_nothing_between_check_and_dial() -> None:
    """The check returns addresses, not the name: a second answer of the resolver's is not asked for."""

    async def play() -> None:
        resolver = Resolver(box=["10.0.0.1"])
        targets = resolver.targets()
        assert await targets.resolve("box", 80) == ["10.0.0.1"]
        resolver.names["box"] = ["127.0.0.1"]
        assert await targets.resolve("box", 80) == ["10.0.0.1"]
        resolver.now += KEPT + 0.1
        with pytest.raises(Refusal) as caught:
            await targets.resolve("box", 80)
        assert caught.value.code == "forbidden_target"

    asyncio.run(play())


def test_a_name_that_leads_to_the_gateway_itself() -> None:
    async def play() -> None:
        targets = Resolver(me=["127.0.0.1"]).targets("127.0.0.0/8")
        assert await targets.resolve("me", 80) == ["127.0.0.1"]
        with pytest.raises(Refusal) as caught:
            await targets.resolve("me", 28888)
        assert "the gateway's own" in caught.value.message

    asyncio.run(play())


def test_a_name_that_is_not_there_is_asked_for_once_a_second() -> None:
    async def play() -> None:
        resolver = Resolver()
        targets = resolver.targets()
        for _ in range(5):
            with pytest.raises(Refusal) as caught:
                await targets.resolve("nobody", 80)
            assert (caught.value.status, caught.value.code) == (502, "unresolved")
        assert resolver.asked == ["nobody"]
        resolver.now += 1.1
        resolver.names["nobody"] = ["10.0.0.1"]
        assert await targets.resolve("nobody", 80) == ["10.0.0.1"]

    asyncio.run(play())


@pytest.mark.parametrize("host", ["a\x00b", "x" * 300, "b\u00f6\udcffx", "", "."])
def test_names_that_no_resolver_takes(host: str) -> None:
    with pytest.raises(Refusal) as caught:
        asyncio.run(Targets().resolve(host, 80))
    assert caught.value.status == 502


def test_one_look_up_at_a_time_and_who_leaves_ends_it_for_nobody() -> None:
    async def play() -> None:
        resolver = Resolver(box=["10.0.0.1"])
        resolver.gate = asyncio.Event()
        targets = resolver.targets()
        waiting = [asyncio.ensure_future(targets.resolve("box", 80)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        resolver.gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [["10.0.0.1"]] * 9
        assert resolver.asked == ["box"]

    asyncio.run(play())


def test_look_ups_under_way_are_bounded() -> None:
    async def play() -> None:
        resolver = Resolver()
        resolver.gate = asyncio.Event()
        targets = resolver.targets()
        waiting = [asyncio.ensure_future(targets.resolve(f"n{number}", 80)) for number in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await targets.resolve("one more", 80)
        assert caught.value.status == 503
        resolver.gate.set()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(play())


def test_what_is_remembered_is_bounded() -> None:
    async def play() -> None:
        resolver = Resolver(**{f"n{number}": ["10.0.0.1"] for number in range(MOST_NAMES + 50)})
        targets = resolver.targets()
        for name in resolver.names:
            await targets.resolve(name, 80)
        assert len(targets._kept) <= MOST_NAMES

    asyncio.run(play())


def test_the_systems_resolver() -> None:
    lookup: Awaitable[list[str]] = Targets([parse_network("127.0.0.0/8"), parse_network("::1")]).resolve(
        "localhost", 80
    )

    async def play() -> None:
        assert set(await lookup) <= {"127.0.0.1", "::1"}

    asyncio.run(play())
