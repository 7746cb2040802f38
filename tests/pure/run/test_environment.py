"""Which variables the command gets."""

from __future__ import annotations

import pytest

from egress.isolation.environment import build

RUNTIME = "/run/user/1000"


def test_what_leads_to_the_host_goes_and_the_rest_stays() -> None:
    result, removed = build({"SSH_AUTH_SOCK": "/run/agent", "LANG": "C", "http_proxy": "http://p"}, [], [], RUNTIME)
    assert result == {"LANG": "C", "http_proxy": "http://p"}
    assert removed == ["SSH_AUTH_SOCK"]


def test_a_shared_socket_keeps_its_variable() -> None:
    environ = {"DOCKER_HOST": "unix:///run/docker.sock", "SSH_AUTH_SOCK": "/tmp/agent"}
    result, removed = build(environ, [], ["/run/docker.sock"], RUNTIME)
    assert (list(result), removed) == (["DOCKER_HOST"], ["SSH_AUTH_SOCK"])


def test_wanted_variables() -> None:
    result, removed = build({"DISPLAY": ":0", "A": "1"}, ["DISPLAY", "A=2", "B=", "ABSENT"], [], RUNTIME)
    assert (result, removed) == ({"DISPLAY": ":0", "A": "2", "B": ""}, [])


def test_the_guards_settings_are_not_the_commands() -> None:
    assert build({"OPENSANDBOX_EGRESS_TOKEN": "secret"}, [], [], RUNTIME) == ({}, [])


def test_the_runtime_folder_is_the_fresh_one() -> None:
    assert build({"XDG_RUNTIME_DIR": "/elsewhere"}, [], [], RUNTIME)[0] == {"XDG_RUNTIME_DIR": RUNTIME}


@pytest.mark.parametrize("text", ["", "=x", "A=\0"])
def test_a_variable_without_a_name_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="--env"):
        build({}, [text], [], RUNTIME)
