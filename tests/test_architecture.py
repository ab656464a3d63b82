"""`docs/architecture.md` names files and functions that exist, and links of all pages lead to files."""

import re
from dataclasses import fields

from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import flag_name
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "latentsync_trt"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_and_folder_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", PAGE)
    assert len(paths) > 30
    inside_runtime = {"networks/", "sessions/", "cache/", "providers/", "compiler/"}
    missing = [
        path for path in paths if not (PACKAGE / ("runtime/" + path if path in inside_runtime else path)).exists()
    ]
    assert not missing


def test_functions_are_in_the_files_they_are_named_with() -> None:
    named = re.findall(r"`([A-Za-z_][\w.]*)` (?:in|\() ?`?((?:\w+/)+\w+\.py)", PAGE)
    named += re.findall(r"`([A-Za-z_][\w.]*)` \(`((?:\w+/)*\w+\.py)`\)", PAGE)
    assert len(named) > 10
    wrong = [
        (name, path)
        for name, path in named
        if not re.search(rf"\b{name.split('.')[-1]}\b", (PACKAGE / path).read_text(encoding="utf-8"))
    ]
    assert not wrong


def test_every_option_of_the_faq_exists() -> None:
    options = (*fields(SyncOptions), *fields(RuntimeOptions))
    known = {flag_name(option.name) for option in options} | {option.metadata.get("off") for option in options}
    named = set(re.findall(r"--[a-z][a-z0-9-]*", (REPOSITORY / "docs" / "faq.md").read_text(encoding="utf-8")))
    assert named <= known | {"--audio"}
    assert len(named) > 15


def test_links_lead_to_files() -> None:
    """Also those from `docs/` to files beside it, which mkdocs does not check."""
    pages = [page for pattern in ("*.md", "docs/*.md", "*/README.md") for page in REPOSITORY.glob(pattern)]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 100
    assert not [(page.name, link) for page, link in links if not (page.parent / link).exists()]
