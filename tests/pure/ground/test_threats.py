"""docs/security.md cannot rot: its table is what the tests are now, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.threats import CHECKOUT, PAGE, ROWS, collect, page


def test_every_row_is_tried_and_every_test_has_a_row() -> None:
    found = collect()
    assert set(found) == set(ROWS), "a test is named for a threat that is not in tests/threats.py"
    assert [row for row, tests in found.items() if not tests] == []


def test_the_page_says_what_the_tests_are_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: tools/threats --write"


def test_every_file_and_test_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for named in set(re.findall(r"`((?:real|blackbox|pure)/[\w/.]+\.py)", text)):
        assert Path(CHECKOUT, "tests", named).is_file(), named
    for name in set(re.findall(r"::(test_\w+)", text)):
        assert any(f"def {name}(" in path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py")), name
