"""`docs/architecture.md` names files and functions that exist, and so do links and options of all
pages; the package keeps the rules that can be counted: small classes, one meaning a name.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import rich_click as click

from latentsync_trt.cli import COMMANDS, main
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "latentsync_trt"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]
OF_OTHERS = {"--build-arg", "--gpus", "--rm", "--user"}  # docker
OF_OTHERS |= {"--extra-index-url", "--find-links", "--force-reinstall"}  # pip
OF_OTHERS |= {"--disable-smart-memory"}  # ComfyUI
OF_OTHERS |= {"--out", "--scenario"}  # scripts
"""Options in the pages' text that are not of `latentsync-trt`."""


EMPTY_NAMES = {"found", "given", "known", "made", "own", "shown"}
MOST_METHODS = 12
MOST_IMPORTED_MODULES = 16
MANY_HAVE = {"F", "P", "R", "T", "_log", "main"}


@cache
def modules() -> dict[Path, ast.Module]:
    """The syntax trees of the package's modules."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def names_at_top(tree: ast.Module | ast.ClassDef) -> set[str]:
    """The functions, classes and variables that the body of a module or class defines."""
    names = set()
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name):
                names |= {name, *(f"{name}.{below}" for below in names_at_top(statement))}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_every_file_and_folder_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (PACKAGE / path).exists()] == []


def test_every_function_is_in_its_file() -> None:
    """As in "`sync_clip` (`sync/clip.py`)", also with several before one file."""
    before_file = r"((?:`[\w.]+`(?:, | and )?)+)\s\(`([\w/]+\.py)`\)"
    named = [
        (name, PACKAGE / file)
        for names, file in re.findall(before_file, PAGE)
        for name in re.findall(r"[\w.]+", names.replace(" and ", " "))
    ]
    assert len(named) > 25
    trees = modules()
    assert [(name, file) for name, file in named if name not in names_at_top(trees[file])] == []


def test_a_name_means_one_thing() -> None:
    """No two modules define the same name: also private ones are searched for by name."""
    places = defaultdict(list)
    for file, tree in modules().items():
        for name in names_at_top(tree) - MANY_HAVE:
            if "." not in name and not name.startswith("__"):
                places[name].append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_names_say_what_they_name() -> None:
    empty = []
    for file, tree in modules().items():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                    if name in EMPTY_NAMES:
                        empty.append(f"{file}:{node.lineno}: {name}")
    assert empty == []


def test_classes_and_modules_are_small() -> None:
    large = []
    for file, tree in modules().items():
        imported = set(imported_modules(tree))
        if len(imported) > MOST_IMPORTED_MODULES:
            large.append(f"{file} imports {len(imported)} of our modules")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                if len(methods) > MOST_METHODS:
                    large.append(f"{file}: {node.name} has {len(methods)} methods")
    assert large == []


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Those of our own, wherever in the module they are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
            yield node.module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_text_exist(page: Path) -> None:
    """Those in blocks of commands are checked by command in `test_site.py`."""
    commands = [main.get_command(click.Context(main), name) for name in COMMANDS]
    commands += [
        below for command in commands for below in getattr(command, "commands", {}).values()
    ]
    params = [param for command in commands if command for param in command.params]
    known = {flag for param in params for flag in (*param.opts, *param.secondary_opts, "--help")}
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= known | OF_OTHERS


def test_links_lead_to_files() -> None:
    """Also those from `docs/` to files beside it, which mkdocs does not check."""
    pages = [
        page
        for pattern in ("*.md", "docs/*.md", "*/README.md")
        for page in REPOSITORY.glob(pattern)
    ]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 100
    assert not [(page.name, link) for page, link in links if not (page.parent / link).exists()]
