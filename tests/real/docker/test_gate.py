"""The gate and the network, when somebody else's hand comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from egress.docker.api import Docker, DockerError
from egress.docker.gate import Gate, table_of
from egress.docker.network import NetworkError, Wanted, ensure
from egress.firewall import FirewallError

if TYPE_CHECKING:
    from lab import Lab
    from tests.real.docker.daemon import Daemon

BRIDGE = "gated0"
WANTED = Wanted("sallyport", "sallyport0")
OURS = {
    "Driver": "bridge",
    "Options": {"com.docker.network.bridge.name": "sallyport0", "com.docker.network.bridge.enable_icc": "false"},
}


def standing(lab: Lab) -> str:
    """The chain that drops what comes from a port that is not open, and the open ones."""
    table = table_of(BRIDGE)
    commands = (("chain", "inet", table, "gate"), ("set", "bridge", table, "open"))
    return "".join(lab.sandbox.run(["nft", "list", *command]).stdout for command in commands)


def remove(lab: Lab, family: str = "bridge") -> None:
    lab.sandbox.run(["nft", "delete", "table", family, table_of(BRIDGE)], check=True)


def test_a_port_that_is_shut_while_the_gate_is_gone_is_shut_when_it_is_laid_again(lab: Lab) -> None:
    gate = Gate(BRIDGE)
    with lab.sandbox.entered():
        gate.lay()
        gate.open({71001, 71002})
        assert "71001, 71002" in standing(lab), "the control"
        remove(lab)
        gate.close({71001})
        assert "elements = { 71002 }" in standing(lab)
        assert gate.mend(), "and it is told"
        assert "elements = { 71002 }" in standing(lab)
        assert not gate.mend()
        assert gate.ports == {71002}


def test_a_port_is_opened_whoever_has_just_removed_the_gate(lab: Lab) -> None:
    gate = Gate(BRIDGE)
    with lab.sandbox.entered():
        gate.lay()
        gate.open({71001})
        remove(lab)
        remove(lab, "inet")
        gate.open({71002})
        assert "71001, 71002" in standing(lab)
        assert "drop" in standing(lab)
        lab.sandbox.run(["nft", "flush", "set", "bridge", table_of(BRIDGE), "open"], check=True)
        gate.close({71001})
        assert "elements = { 71002 }" in standing(lab)


def test_what_could_not_be_laid_is_laid_by_the_next_look(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(BRIDGE)
    with lab.sandbox.entered():
        gate.lay()
        gate.open({71001, 71002})
        remove(lab)
        with monkeypatch.context() as broken:
            broken.setattr("egress.docker.gate.rules", lambda *_: "nonsense\n")
            with pytest.raises(FirewallError, match="syntax error"):
                gate.close({71001})
        remove(lab, "inet")
        assert gate.mend()
        assert "elements = { 71002 }" in standing(lab)


def test_a_network_that_somebody_creates_at_the_same_moment_is_taken(daemon: Daemon) -> None:
    answers: list[Any] = [(200, OURS), (404, {"message": "no such network"})]
    daemon.instead["GET /networks/sallyport"] = answers.pop
    daemon.instead["POST /networks/create"] = lambda: (409, {"message": "it exists"})
    assert ensure(Docker(daemon.host), WANTED) is False
    answers += [(200, OURS | {"Driver": "overlay"}), (404, {"message": "no such network"})]
    with pytest.raises(NetworkError, match="its driver is overlay"):
        ensure(Docker(daemon.host), WANTED)
    answers += [(404, {"message": "no such network"})] * 2
    with pytest.raises(DockerError, match="it exists"):
        ensure(Docker(daemon.host), WANTED)
