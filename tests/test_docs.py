"""The documentation's examples print what it says they print."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["guards.md"])
def test_examples_of_a_page(page):
    result = doctest.testfile(str(DOCS / page), module_relative=False, verbose=False)
    assert result.attempted > 20 and result.failed == 0


def test_every_page_is_listed():
    listed = (DOCS / "README.md").read_text()
    assert all(f"({p.name})" in listed for p in DOCS.glob("*.md") if p.name != "README.md")
