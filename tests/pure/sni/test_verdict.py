"""Which names may be spoken to where, and the messages that carry the word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.firewall.leases import Teaching
from egress.sni import messages
from egress.sni.messages import Message, decode
from egress.sni.verdict import Verdict, judge
from policies.matcher import compile_policy
from policies.parser import parse_policy
from policies.ports import EVERYTHING, PortSet

COMPILED = compile_policy(parse_policy("""{"egress": [
    {"action": "deny", "target": "bad.example.com", "comment": "no"},
    {"action": "allow", "target": "*.example.com", "ports": [443]},
    {"action": "allow", "target": "both.example.net"}
]}"""))  # fmt: skip
WEB = PortSet(((443, 443),), ((443, 443),), False)


def taught(name: str, ports: PortSet = WEB, chain: tuple[str, ...] = ()) -> Teaching:
    return Teaching(name, chain, ports, 100.0, 0.0)


def word(name: str, port: int = 443, *teachings: Teaching) -> Verdict:
    return judge(COMPILED, teachings, "?", name, port)


def test_allowed_and_answered() -> None:
    assert word("a.example.com", 443, taught("b.example.com"), taught("a.example.com", chain=("x.cdn.example",))) == (
        True, ("x.cdn.example",), "", "",
    )  # fmt: skip
    assert word("both.example.net", 80, taught("both.example.net", EVERYTHING)).allowed


def test_allowed_and_not_answered() -> None:
    verdict = word("a.example.com", 443, taught("b.example.com"))
    assert (verdict.allowed, verdict.reason) == (False, "this address was not answered for the name")
    assert not word("a.example.com").allowed


@pytest.mark.parametrize("name", ["bad.example.com", "example.com", "other.example.net"])
def test_denied_whatever_was_answered(name: str) -> None:
    """A lease may stand for a moment longer than the policy that taught it."""
    verdict = word(name, 443, taught(name, EVERYTHING), taught("?0", EVERYTHING))
    assert not verdict.allowed
    assert verdict.reason
    assert bool(verdict.rule) is (name == "bad.example.com")


def test_by_port() -> None:
    assert not word("a.example.com", 80, taught("a.example.com", EVERYTHING)).allowed
    verdict = word("both.example.net", 80, taught("both.example.net", WEB))
    assert (verdict.allowed, verdict.reason) == (False, "what the name leads through is denied on port 80")


def test_an_address_whose_names_are_not_known_any_more() -> None:
    """Taken over by the next life of the sidecar, under the same policy: what that allows on the port."""
    assert word("a.example.com", 443, taught("?0")) == Verdict(True)
    assert not word("a.example.com", 443, taught("?1", PortSet(((80, 80),), (), False))).allowed
    assert not word("bad.example.com", 443, taught("?0")).allowed


@given(
    st.integers(0, messages.RECHECK), st.integers(0, 2**64 - 1), st.sampled_from([b"", bytes(4), bytes(range(16))]),
    st.integers(0, 65535), st.lists(st.text("abc.-xyz é", min_size=1, max_size=20), max_size=5).map(tuple),
)  # fmt: skip
def test_messages_arrive_as_they_were_sent(
    kind: int, number: int, packed: bytes, port: int, texts: tuple[str, ...]
) -> None:
    message = Message(kind, number, packed, port, texts)
    assert decode(message.encode()) == message


@given(st.binary(max_size=40))
def test_whatever_comes_is_a_message_or_an_error(data: bytes) -> None:
    try:
        message = decode(data)
    except ValueError:
        return
    assert isinstance(message, Message)
