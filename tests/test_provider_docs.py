"""`docs/providers.md` explains every message that choosing, building, caching and running engines can end in."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from latentsync_trt import errors, runtime
from latentsync_trt.runtime.providers import messages as reasons

PAGE = Path(__file__).resolve().parents[1] / "docs" / "providers.md"
TEXT = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))

ERRORS = {name for name, value in inspect.getmembers(errors, inspect.isclass)}

# How long what stands for a changing part may be in the page, as in <the loader's words>.
PLACEHOLDER = ".{0,60}?"

# Less than this is a prefix of somebody else's words.
LEAST_LETTERS = 6

Fragments = tuple[str, ...]


def messages() -> Iterator[tuple[str, Fragments]]:
    """Place and unchanging parts of each message in the package's engine room."""
    for name, template in reasons.TEMPLATES.items():
        yield f"reasons.{name}", tuple(part for part, *_ in Formatter().parse(template) if part)
    for path in sorted(Path(inspect.getfile(runtime)).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and is_said(node.func):
                fragments = constant_parts(node.args[0])
                if len(re.findall(r"\w", "".join(fragments))) >= LEAST_LETTERS:
                    yield f"{path.stem}:{node.lineno}", fragments


def is_said(function: ast.expr) -> bool:
    """Whether a call makes an error, or tells a notice."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ERRORS or "notice" in name


def constant_parts(argument: ast.expr) -> Fragments:
    if isinstance(argument, ast.JoinedStr):
        return tuple(part.value for part in argument.values if isinstance(part, ast.Constant))
    return (argument.value,) if isinstance(argument, ast.Constant) else ()


def is_explained(fragments: Fragments, text: str = TEXT) -> bool:
    return re.search(PLACEHOLDER.join(re.escape(part.strip()) for part in fragments), text) is not None


@pytest.mark.parametrize(
    ("place", "fragments"), list(messages()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_message_is_explained(place: str, fragments: Fragments) -> None:
    assert is_explained(fragments), f"{place}: docs/providers.md lacks {' … '.join(fragments)!r}"


def test_the_messages_are_found_and_an_unknown_one_is_noticed() -> None:
    found = dict(messages())
    assert len(found) > len(reasons.TEMPLATES) + 20
    assert not is_explained(("the moon is in the wrong phase (", "); wait"))
    assert not is_explained(found["reasons.NO_DRIVER"], TEXT.replace("no NVIDIA driver", "no driver"))
