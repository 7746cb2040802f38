"""The page about the gateway knows every flag."""

from __future__ import annotations

from pathlib import Path

from ingress.settings.table import FLAGS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "ingress.md"


def test_every_flag_is_in_the_page() -> None:
    text = PAGE.read_text()
    assert [flag.name for flag in FLAGS if f"`--{flag.name}`" not in text] == []
