"""`docs/providers.md` has a cause and a cure for every reason why a provider does not run."""

import re
from pathlib import Path
from string import Formatter

import pytest

from latentsync_trt.runtime.providers.table import TEMPLATES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "providers.md"


def entries() -> list[tuple[str, str]]:
    """Message and cure of each row in the tables of problems."""
    problems = PAGE.read_text(encoding="utf-8").partition("\n## Problems\n")[2]
    rows = [line.strip("|").split(" | ") for line in problems.splitlines() if line.startswith("| ")]
    return [(cells[0], cells[-1].strip()) for cells in rows if len(cells) == 3]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_every_obstacle_has_an_entry_with_a_cure(template: str) -> None:
    pattern = ".*".join(re.escape(text) for text, *_ in Formatter().parse(template))
    found = [cure for message, cure in entries() if re.search(pattern, message)]
    assert found, f"no row of docs/providers.md has {template!r}"
    assert all(found)
