"""The documentation site: made parts are complete, links lead somewhere, and pages ask no other host for anything."""

import re
import sys
from dataclasses import fields
from html import unescape
from pathlib import Path
from subprocess import run
from urllib.parse import unquote, urlsplit

import pytest

from latentsync_trt.cli import COMMANDS
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.export.options import ExportOptions
from latentsync_trt.serve.limits import Limits
from tests.conftest import REPOSITORY

pytest.importorskip("material", reason="needs the extra docs")
pytestmark = pytest.mark.integration

CITED = {"developer.nvidia.com", "docs.nvidia.com", "filesystem-spec.readthedocs.io", "github.com", "onnxruntime.ai"}
"""Hosts of sources that a reader may click on; nothing is loaded from there."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    found = run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    """HTML by path; the links of 404.html begin at the root of the host, as it is shown at any depth."""
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}


@pytest.mark.parametrize("options", [SyncOptions, RuntimeOptions, ExportOptions, Limits])
def test_every_option_has_an_anchor_with_its_help(site: Path, options: type) -> None:
    page = (site / "options.html").read_text(encoding="utf-8")
    for spec in fields(options):
        pattern = rf'<h4 id="(?:\w+-)?{spec.name.replace("_", "-")}".*?(?=<h[234] )'
        entries = [unescape(re.sub(r"<[^>]+>", "", found)) for found in re.findall(pattern, page, re.DOTALL)]
        help_text = re.sub(r"\[default: .*\]$", "", spec.metadata["help"]).replace("`", "")
        assert any(" ".join(help_text.split()) in " ".join(entry.split()) for entry in entries), spec.name


def test_every_command_has_a_section_with_its_help(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<h3 id="(\w+)"(.*?)(?=<h[23] |</article>)', page, re.DOTALL))
    assert list(sections) == list(COMMANDS)
    assert all(f"Usage: latentsync-trt {name} " in text and "--help" in text for name, text in sections.items())


def test_plots_name_their_hardware_version_and_rows(site: Path) -> None:
    page = (site / "benchmarks.html").read_text(encoding="utf-8")
    plots = re.findall(r'<figure id="plot-([\w-]+)"><svg .*?</svg>\s*<figcaption>(.*?)</figcaption>', page, re.DOTALL)
    assert [name for name, _ in plots] == ["speed", "pytorch", "gpus", "memory", "eight-bits"]
    assert all(re.search(r"(NVIDIA H|AMD ).*ONNX Runtime 1\..*benchmarks/[\w-]+\.json", text) for _, text in plots)
    assert re.search(r"<b>\d+\.\d+ s</b>", (site / "index.html").read_text(encoding="utf-8"))


def test_pages_load_nothing_from_other_hosts(site: Path, pages: dict[Path, str]) -> None:
    html = "".join(pages.values())
    assert set(re.findall(r'<a [^>]*href="https?://([^/"]+)', html)) <= CITED
    assert re.findall(r"<(?:script|link|img|iframe|source|video) [^>]*//[^>]*>", html) == []
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert sheets and not any(re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet) for sheet in sheets)


def test_every_internal_link_resolves(pages: dict[Path, str]) -> None:
    ids = {path: set(re.findall(r'\s(?:id|name)="([^"]+)"', html)) for path, html in pages.items()}
    links = [(path, urlsplit(link)) for path in pages for link in re.findall(r'\s(?:href|src)="([^"]+)"', pages[path])]
    assert len(links) > 1000
    for path, link in links:
        if link.scheme in ("", "file"):
            target = (path.parent / unquote(link.path)).resolve() if link.path else path
            assert target.exists(), (path.name, link.path)
            assert not link.fragment or target not in ids or unquote(link.fragment) in ids[target], (path.name, link)
