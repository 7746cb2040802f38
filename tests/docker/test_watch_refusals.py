"""What `egress docker watch` does not begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docker.watching import NETWORK, Watching

if TYPE_CHECKING:
    from tests.docker.daemon import Daemon


def test_a_network_that_is_not_as_it_has_to_be_is_refused(host: Daemon) -> None:
    host.docker("network", "create", NETWORK)
    watching = Watching(host)
    try:
        done = host.egress("docker", "watch")
        assert done.returncode == 1
        assert "network sallyport: its bridge is not named, not sallyport0" in done.stderr
    finally:
        host.docker("network", "rm", NETWORK)
        watching.remove_gate()


def test_whom_docker_asks_from_the_host_has_to_be_named_by_the_container(host: Daemon) -> None:
    path = host.folder / "resolv.conf"
    before = path.read_text()
    path.write_text("nameserver 127.0.0.1\n")
    try:
        with Watching(host, upstream=before.split()[1]) as watching:
            watching.said("only those with --dns are guarded")
            watching.run("without")
            refused = watching.said("without killed: Docker asks 127.0.0.1 for it from the host's network")
            assert "run it with --dns" in refused["error"]
            watching.run("with", options=("--dns=203.0.113.53",))
            watching.guarded("with")
            assert watching.reaches("with", "http://api.example.com/")
    finally:
        path.write_text(before)
