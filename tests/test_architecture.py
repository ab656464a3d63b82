"""`docs/architecture.md` names files and functions that exist; so do links and options of all
pages.
"""

import re
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


def test_every_file_and_folder_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", PAGE)
    assert len(paths) > 30
    inside_runtime = {"networks/", "sessions/", "cache/", "providers/", "compiler/"}
    missing = [
        path
        for path in paths
        if not (PACKAGE / ("runtime/" + path if path in inside_runtime else path)).exists()
    ]
    assert not missing


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
