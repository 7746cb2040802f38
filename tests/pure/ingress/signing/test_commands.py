"""`ingress sign` and `ingress verify`: one makes what the other explains, and what the gate lets in."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from ingress.admission.routing import Route
from ingress.commands import sign, verify
from ingress.commands.signing import read_expiry, span
from tests.pure.ingress.gate.asking import KEYS, House, ask

if TYPE_CHECKING:
    from pathlib import Path

A, B = (base64.b64encode(KEYS.secret(key_id) or b"").decode() for key_id in "ab")
KEY = f"--key=a={A}"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENSANDBOX_SECURE_ACCESS_KEYS", "OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY"):
        monkeypatch.delenv(name, raising=False)


def signed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert sign.main([*argv]) == 0
    return capsys.readouterr().out.strip()


def explained(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = verify.main([*argv])
    return code, capsys.readouterr().out


def test_every_form_is_let_in_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    import time

    house = House()
    house.now = time.time()
    for hours, form in enumerate(("header", "host", "uri", "link", "host-link"), 1):
        text = signed(
            capsys,
            KEY,
            f"--expires={hours}h",
            "--form",
            form,
            "--base",
            "https://gw.example.com",
            "--to",
            "/lab?x=1",
            "safe",
            "8080",
        )
        assert "\n" not in text
        code, words = explained(capsys, KEY, text)
        assert code == 0
        assert "right, by key a" in words
        if form == "header":
            assert house.admit(ask("/", text)).port == 8080
            continue
        _, _, rest = text.partition("//")
        host, slash, path = rest.partition("/")
        head = ask(slash + path, host=host)
        if "link" in form:
            assert b"/lab?x=1\r\n" in house.reply(head).headers
        else:
            assert house.admit(head).target == b"/lab?x=1"
    house.throttle.close()


def test_two_links_of_one_second_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [KEY, "--expires", "30d", "--form", "link", "box", "80"]
    assert len({signed(capsys, *argv) for _ in range(5)}) == 5
    assert (
        len({signed(capsys, KEY, "--expires", "2100-01-01T00:00:00Z", "--form", "uri", "box", "80") for _ in "ab"}) == 1
    )


def test_all_forms_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in signed(capsys, KEY, "my-box", "80").splitlines())
    assert list(lines) == ["header", "host", "uri", "expires", "key"]
    assert lines["header"].startswith("OpenSandbox-Ingress-To: my-box-80-")
    assert lines["uri"].startswith("/my-box/80/")


def test_where_keys_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# two\na={A}\nb={B}\n")
    assert signed(capsys, "--keys-file", str(file), "--key-id", "b", "--form", "header", "box", "80").endswith("b")
    monkeypatch.setenv("OPENSANDBOX_SECURE_ACCESS_KEYS", f"a={A},b={B}")
    assert sign.main(["box", "80"]) == 2
    assert "--key-id" in capsys.readouterr().err
    monkeypatch.setenv("OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY", "b")
    assert signed(capsys, "--form", "header", "box", "80").endswith("b")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["box"],
        ["box", "80"],
        [KEY, "box", "0"],
        [KEY, "box", "080"],
        [KEY, "box", "65536"],
        [KEY, "b/x", "80"],
        [KEY, "", "80"],
        [KEY, "..", "80"],
        [KEY, "--form", "other", "box", "80"],
        [KEY, "--expires", "soon", "box", "80"],
        [KEY, "--expires", "2020-01-01T00:00:00Z", "box", "80"],
        [KEY, "--expires", "2030-01-01T00:00:00", "box", "80"],
        [KEY, "--expires", "2030-13-01T00:00:00Z", "box", "80"],
        [KEY, "--expires", "999999999999", "box", "80"],
        [KEY, "--base", "gw.example.com", "box", "80"],
        [KEY, "--base", "https://gw.example.com/x", "box", "80"],
        [KEY, "--base", "https://[::1]", "--form", "host", "box", "80"],
        [KEY, "--to", "//evil.example", "box", "80"],
        [KEY, "--key-id", "z", "box", "80"],
        [KEY, KEY, "box", "80"],
        ["--key", A, "box", "80"],
        ["--keys-file", "/nowhere/at/all", "box", "80"],
        [KEY, "--keys-file", "x", "box", "80"],
        [KEY, "--nonsense", "box", "80"],
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert sign.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ingress sign: ")
    assert err.count("\n") == 1
    assert A[:12] not in err


def test_a_name_that_no_host_name_can_carry(capsys: pytest.CaptureFixture[str]) -> None:
    for sandbox in ("Box", "my.box", "x" * 60):
        assert sign.main([KEY, sandbox, "80"]) == 0
        assert "host name" in capsys.readouterr().err


GOOD = Route("box", 80, "zzzzzz")


def test_what_verify_says_of_wrong_ones(capsys: pytest.CaptureFixture[str]) -> None:
    token = signed(capsys, KEY, "--form", "header", "box", "80").partition(": ")[2]
    for text, keys, words in (
        (token.replace("box", "bax"), [KEY], "wrong"),
        (token[:-1] + "b", [f"--key=a={A}", f"--key=b={B}"], "names key b, but key a made it"),
        (token[:-1] + "z", [KEY], "not among the keys"),
        (token, [], "takes the keys"),
        ("box-80", [KEY], "none"),
        ("https://gw.example.com/box/80/.sallyport/enter?e=zzzzzz&s=XYZ", [KEY], "malformed"),
        ("https://gw.example.com/box/80/.sallyport/enter?e=0z&s=00000000a", [KEY], "never was good"),
    ):
        code, out = explained(capsys, *keys, text)
        assert code == 1
        assert words in out
    secret = KEYS.secret("a")
    assert secret is not None
    expired = f"box-80-1abc-{sign_by_hand(secret)}a"
    code, out = explained(capsys, KEY, expired)
    assert code == 1
    assert "right, by key a" in out
    assert "ago" in out


def sign_by_hand(secret: bytes) -> str:
    from tests.pure.ingress.gate.asking import reference_signature

    return reference_signature(secret, "", "box", 80, "1abc")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "/",
        "/box",
        "https://gw.example.com/",
        "https://u@gw.example.com/box/80",
        "b\u00f6x-80",
        "\x1b[31m",
    ],
)
def test_what_verify_cannot_read(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert verify.main([KEY, text]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.isascii()
    assert "\x1b" not in err


def test_times() -> None:
    now = 1_800_000_000.5
    assert read_expiry("1h30m", now) == 1_800_005_400
    assert read_expiry("90", now) == 1_800_000_090
    assert read_expiry("1900000000", now) == 1_900_000_000
    assert read_expiry("2030-01-31T12:00:00Z", now) == 1_896_091_200
    assert read_expiry("2030-01-31T13:00:00+01:00", now) == 1_896_091_200
    assert [span(seconds) for seconds in (0, 1, 59, 119, 120, 3600 * 47, 86_400 * 30)] == [
        "0 seconds",
        "1 second",
        "59 seconds",
        "119 seconds",
        "2 minutes",
        "47 hours",
        "30 days",
    ]
