"""The documentation site: made parts are complete, and pages ask no other host for anything."""

import os
import re
import sys
from contextlib import suppress
from dataclasses import fields
from html import unescape
from importlib import metadata
from pathlib import Path
from subprocess import run

import pytest
import rich_click as click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from latentsync_trt.cli import COMMANDS, main
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.export.export_options import ExportOptions
from latentsync_trt.option_fields import flag_name
from latentsync_trt.serve.admission import Limits
from scripts.site.facts import facts, pages, updated
from tests.conftest import REPOSITORY

pytest.importorskip("material", reason="needs the extra docs")
pytestmark = pytest.mark.integration

CITED = {
    "docs.nvidia.com",
    "filesystem-spec.readthedocs.io",
    "github.com",
}
"""Hosts of sources that a reader may click on; nothing is loaded from there."""

HEADLINES = ("README.md", "docs/index.md", "docs/quickstart.md", "docs/comfyui.md")
"""Pages that state measured numbers only where a row stands behind each."""

COMPUTED = {"0.64 s", "37 GB"}
"""A window of 16 frames, and a minute of 1080p in float32."""

_BLOCKS = re.compile(r"```.*?```|<!-- table: \w+ -->.*?<!-- /table -->", re.DOTALL)
_MEASURED = re.compile(
    r"\d[\d.,]*(?:<!-- \w+ -->)? ?(?:GB|ms|s|seconds|minutes|frames/s|×)(?![\w/])"
)


ADDRESS = "https://example.org/x/"


BUILD = "import sys; sys.modules |= dict.fromkeys({absent}); from mkdocs.__main__ import cli; cli()"


def modules_of_other_extras() -> list[str]:
    """What `import` finds here, but not where only the extra `docs` is installed."""
    left = [("latentsync-trt", "docs"), ("pip", "")]
    installed = set()
    while left:
        name, extra = left.pop()
        if (name, extra) in installed:
            continue
        installed.add((name, extra))
        with suppress(metadata.PackageNotFoundError):  # of another system
            for text in metadata.requires(name) or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left += [
                        (canonicalize_name(needed.name), each) for each in ("", *needed.extras)
                    ]
    names = {name for name, _ in installed}
    modules = metadata.packages_distributions().items()
    return [
        module for module, owners in modules if names.isdisjoint(map(canonicalize_name, owners))
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built for an address, as where only the extra `docs` is installed."""
    folder = tmp_path_factory.mktemp("site")
    absent = modules_of_other_extras()
    assert "torch" in absent and "mkdocs" not in absent
    command = [sys.executable, "-c", BUILD.format(absent=absent), "build", "--strict", "--quiet"]
    command += ["--site-dir", str(folder)]
    env = {**os.environ, "SITE_URL": ADDRESS}
    built = run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_pages_know_their_address(site: Path) -> None:
    assert f'"{ADDRESS}sync.html"' in (site / "sync.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [SyncOptions, RuntimeOptions, ExportOptions, Limits])
def test_every_option_has_an_anchor_with_its_help(site: Path, options: type) -> None:
    page = (site / "options.html").read_text(encoding="utf-8")
    for spec in fields(options):
        pattern = rf'<h4 id="(?:\w+-)?{flag_name(spec.name)[2:]}".*?(?=<h[234] )'
        entries = [
            unescape(re.sub(r"<[^>]+>", "", entry))
            for entry in re.findall(pattern, page, re.DOTALL)
        ]
        help_text = re.sub(r"\[default: .*\]$", "", spec.metadata["help"]).replace("`", "")
        assert any(" ".join(help_text.split()) in " ".join(entry.split()) for entry in entries), (
            spec.name
        )


def test_every_command_has_a_section_with_its_usage(site: Path) -> None:
    page = (site / "options.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<h2 id="of-([\w-]+)"(.*?)(?=<h2 |</article>)', page, re.DOTALL))
    assert set(COMMANDS) < set(sections)
    assert all(
        f"latentsync-trt {name.replace('-', ' ')} " in text for name, text in sections.items()
    )
    assert "--max-gb" in sections["cache-prune"]


def test_plots_name_their_hardware_version_and_rows(site: Path) -> None:
    page = (site / "performance.html").read_text(encoding="utf-8")
    plots = re.findall(
        r'<figure id="plot-([\w-]+)"><svg .*?</svg>\s*<figcaption>(.*?)</figcaption>',
        page,
        re.DOTALL,
    )
    assert sorted(name for name, _ in plots) == ["eight-bits", "gpus", "memory", "pytorch", "speed"]
    assert all(
        re.search(r"(NVIDIA H|AMD ).*ONNX Runtime 1\..*benchmarks/[\w-]+\.json", text)
        for _, text in plots
    )
    # those of the rest of a page are checked by mkdocs
    links = re.findall(r'href="(benchmarks/[^"]+)"', page)
    assert links and all((site / link).is_file() for link in links)


def test_the_first_page_has_numbers_of_the_rows(site: Path) -> None:
    numbers = re.findall(r"<b>([\d.]+)[^<]*</b>", (site / "index.html").read_text(encoding="utf-8"))
    assert numbers == [
        facts()[name] for name in ("pace_512", "eager_times", "least_512_gb", "gpus_times")
    ]


def test_every_page_has_one_title(site: Path) -> None:
    """A wrapped line that begins with # would be another one."""
    assert [
        path.name for path in site.glob("*.html") if path.read_text("utf-8").count("<h1") != 1
    ] == []


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    html = "".join(
        path.read_text(encoding="utf-8").replace(ADDRESS, "") for path in site.rglob("*.html")
    )
    assert set(re.findall(r'<a [^>]*href="https?://([^/"]+)', html)) <= CITED
    assert re.findall(r"<(?:script|link|img|iframe|source|video) [^>]*//[^>]*>", html) == []
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert sheets and not any(
        re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet) for sheet in sheets
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_numbers_are_those_of_the_rows(page: Path) -> None:
    """`python scripts/site/facts.py` writes them."""
    text = page.read_text(encoding="utf-8")
    assert text == updated(text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_have_their_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"\blatentsync-trt ([a-z](?:[^\n`#|]|\\\n)*)", text):
        words = line.split()
        command = main.get_command(click.Context(main), words[0])
        assert command is not None, line
        below = getattr(command, "commands", {}).get(words[1] if len(words) > 1 else "")
        options = {
            flag
            for param in (below or command).params
            for flag in (*param.opts, *param.secondary_opts)
        }
        named = {
            word.partition("=")[0].rstrip(".,;:)") for word in words if re.match(r"--[a-z]", word)
        }
        assert named <= options, line


@pytest.mark.parametrize("name", HEADLINES)
def test_first_pages_state_no_other_measured_number(name: str) -> None:
    text = _BLOCKS.sub("", (REPOSITORY / name).read_text(encoding="utf-8"))
    assert [
        number
        for number in _MEASURED.findall(text)
        if "<!--" not in number and number not in COMPUTED
    ] == []


def test_a_page_whose_number_differs_is_corrected() -> None:
    stale = "In 99.9<!-- sync_512_s --> s.\n\n<!-- table: clip -->\nolder\n<!-- /table -->\n"
    right = updated(stale)
    assert right == updated(right) != stale
    assert "99.9" not in right and "older" not in right and right.startswith("In ")
    with pytest.raises(KeyError):
        updated("1<!-- no_such_number --> s")
