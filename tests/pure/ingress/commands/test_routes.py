"""`ingress routes`: entries as they are shown, to people and to programs."""

from __future__ import annotations

import json

from ingress.commands.routes import document, row, table
from ingress.providers.base import Health
from ingress.routes import Ambiguous, Sandbox

BOX = Sandbox("box", "10.0.0.7", token="s3cret", ports=frozenset({8080, 3000}))
OFF = Sandbox("off", "", ready=False, reason="its container\nis paused")
TWICE = Ambiguous("twice", ("one", "two"), (Sandbox("twice", "a"), BOX))
PUBLISHED = Sandbox("pub", "127.0.0.1", port_map=((80, "127.0.0.1", 49153),), ports=frozenset({80}))


def shut(host: str) -> str:
    return "loopback" if host.startswith("127.") else ""


def test_a_table_for_people_shows_no_token() -> None:
    text = table([row(entry, shut) for entry in (BOX, OFF, PUBLISHED, TWICE)], Health(True, "", "here"))
    assert text == (
        "source: here\n"
        "ID     ADDRESS             PORTS      ACCESS  READY\n"
        "box    10.0.0.7            3000,8080  token   ready\n"
        "off    -                   any        open    no: its container\\nis paused\n"
        "pub    80=127.0.0.1:49153  80         open    no: 127.0.0.1 is loopback; --allow-target 127.0.0.1 opens it\n"
        "twice  -                   any        token   no: ambiguous, it is in one, two\n"
    )


def test_what_is_wrong_comes_first() -> None:
    assert table([], Health(True, "gone", "here")) == "source: here\nwrong:  gone\nno sandboxes\n"


def test_json_for_programs_shows_no_token() -> None:
    text = document([row(BOX, shut), row(OFF, shut)], Health(True, "", "here"))
    assert "s3cret" not in text
    assert json.loads(text) == {
        "source": "here",
        "loaded": True,
        "degraded": None,
        "sandboxes": [
            {
                "id": "box",
                "address": "10.0.0.7",
                "ports": [3000, 8080],
                "ready": True,
                "reason": None,
                "access": True,
            },
            {
                "id": "off",
                "address": None,
                "ports": None,
                "ready": False,
                "reason": "its container\nis paused",
                "access": False,
            },
        ],
    }
