"""`docker run`'s options: who gets them, and which are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.docker.options import OptionError, divide


def test_the_network_is_the_sidecars_and_the_rest_the_containers() -> None:
    line = "--policy web-only -p 127.0.0.1:8080:80 --dns=192.0.2.53 --hostname box --add-host a:192.0.2.1 -it"
    line += " --name=box -e A=b -eC=d -v /srv:/srv --rm --memory 1g -- image sh -c -p"
    divided = divide(line.split())
    assert divided.ours == (("policy", "web-only"),)
    assert divided.sidecar == (
        "--publish=127.0.0.1:8080:80", "--dns=192.0.2.53", "--hostname=box", "--add-host=a:192.0.2.1",
    )  # fmt: skip
    assert divided.container == (
        "--interactive", "--tty", "--name=box", "--env=A=b", "--env=C=d", "--volume=/srv:/srv", "--memory=1g",
    )  # fmt: skip
    assert (divided.image, divided.command) == ("image", ("sh", "-c", "-p"))
    assert (divided.name, divided.resolvers) == ("box", ("192.0.2.53",))


def test_without_the_two_dashes_the_first_word_is_the_image() -> None:
    divided = divide(["--allow", "api.example.com", "-it", "image", "--privileged"])
    assert (divided.image, divided.command) == ("image", ("--privileged",))


def test_a_network_of_ones_own_is_told() -> None:
    assert divide(["--network", "mine", "--", "image"]).network == "mine"
    assert divide(["--net=name=mine,alias=a", "--", "image"]).network == "mine"


@pytest.mark.parametrize("words", [["--privileged=false"], ["-e", "--privileged"], ["--sysctl=kernel.msgmax=8192"]])
def test_what_only_looks_dangerous_passes(words: list[str]) -> None:
    assert divide([*words, "--", "image"]).image == "image"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--privileged", "can take the rules away"),
        ("--privileged=true", "can take the rules away"),
        ("--network host", "joins the guard's network"),
        ("--network=container:other", "joins the guard's network"),
        ("--net none", "nothing to guard"),
        ("--cap-add NET_ADMIN", "can take the rules away"),
        ("--cap-add=cap_net_admin", "can take the rules away"),
        ("--cap-add ALL", "every capability"),
        ("--cap-add NET_RAW", "raw sockets"),
        ("--cap-add sys_admin", "leave its namespaces"),
        ("--pid=host", "PID namespace"),
        ("--pid container:other", "PID namespace"),
        ("-v /var/run/docker.sock:/var/run/docker.sock", "start containers that nobody guards"),
        ("--mount type=bind,source=/,target=/host", "the host's /"),
        ("--mount type=bind,src=/run/docker.sock,dst=/s", "start containers"),
        ("--use-api-socket", "start containers"),
        ("--runtime runsc", "network stack of its own"),
        ("--sysctl net.ipv4.ip_forward=1", "the network is the guard's"),
        ("-d", "removed together"),
        ("-itd", "removed together"),
        ("--restart always", "removed together"),
        ("-P", "name them with -p"),
        ("--no-such-option", "not an option of docker run that is known here"),
        ("-Z", "not an option of docker run that is known here"),
    ],
)
def test_what_would_defeat_the_guard_is_refused_with_the_reason(line: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        divide([*line.split(), "--", "image"])
    assert words in str(caught.value)
    assert str(caught.value).startswith("-")


@pytest.mark.parametrize("argv", [[], ["--"], ["--policy", "web-only"], ["-e"], ["--policy"]])
def test_without_an_image_it_says_so(argv: list[str]) -> None:
    with pytest.raises(OptionError):
        divide(argv)


WORDS = st.sampled_from(
    ["-it", "-e", "A=b", "--", "image", "-p", "80:80", "--privileged", "--cap-add=NET_ADMIN", "-v/:/x", "--net", "host",
     "--pid=host", "-", "--=", "--policy", "x", "--cap-add", "all", "--name=a"]
) | st.text(max_size=6)  # fmt: skip


@given(st.lists(WORDS, max_size=10))
@pytest.mark.hypothesis
def test_whatever_is_written_nothing_that_defeats_the_guard_comes_through(argv: list[str]) -> None:
    try:
        divided = divide(argv)
    except OptionError:
        return
    options = (*divided.sidecar, *divided.container)
    assert all(option.startswith("--") for option in options)
    for option in options:
        name, _, value = option[2:].partition("=")
        assert name not in ("privileged", "pid", "restart", "detach")
        assert name != "cap-add" or value.upper().removeprefix("CAP_") not in ("ALL", "NET_ADMIN", "NET_RAW")
        assert name != "network" or value not in ("host", "none")
        assert name != "volume" or not value.startswith("/:")
