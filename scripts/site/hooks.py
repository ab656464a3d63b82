"""Hooks of mkdocs: pages made from the code or from files outside `docs/`, numbers, plots, and
links to such files.
"""

import re
from functools import partial
from pathlib import Path

import facts
import plots
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "LICENSE": "license.md",
    "NOTICE": "license.md",
}
"""Files outside `docs/` by the page that shows them."""

_MARKER = re.compile(r"^<!-- site: (numbers|plot) ?(\S*) -->$", re.MULTILINE)
_FACT = re.compile(r"<!-- (?:table: \w+|/table|[a-z]\w+) -->")
_FLAG = re.compile(r"(?<![\w-])-{1,2}[a-z][\w-]*")
_UNBROKEN = r'<span class="flag">\g<0></span>'
_LINK = re.compile(r"\[([^\]]*)\]\(([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages from the repository, of options and Python, the licenses, and the rows that pages
    link to.
    """
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        files.append(File.generated(config, PAGES[name], abs_src_path=str(ROOT / name)))
    files.append(
        File.generated(
            config, "options.md", content=f"# Commands and options\n\n{reference.options()}"
        )
    )
    files.append(File.generated(config, "api.md", content=f"# Python\n\n{reference.api()}"))
    texts = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("NOTICE", "LICENSE"))
    files.append(
        File.generated(config, "license.md", content=f"# License\n\n```text\n{texts}\n```\n")
    )
    for rows in sorted((ROOT / "benchmarks").glob("*.json")):
        files.append(File.generated(config, f"benchmarks/{rows.name}", abs_src_path=str(rows)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The page with its made parts, highlighted commands, and links that the site has."""
    source = page.file.abs_src_path
    markdown = _FACT.sub("", facts.updated(markdown))
    markdown = _LINK.sub(partial(_link, Path(source).parent if source else ROOT), markdown)
    markdown = _MARKER.sub(
        lambda found: plots.figure(found[2]) if found[2] else plots.numbers(), markdown
    )
    return re.sub(r"^```console$", "```bash", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: object) -> str:
    """Commands whose flags are not broken at their dashes."""
    return re.sub(
        r"<code>([^<\n]*)</code>",
        lambda found: f"<code>{_FLAG.sub(_UNBROKEN, found[1])}</code>",
        html,
    )


def _link(folder: Path, found: re.Match[str]) -> str:
    """The link as the site has it; what is only in the repository becomes its path."""
    path = (folder / found[2]).resolve()
    if path.is_relative_to(ROOT):
        name = path.relative_to(ROOT).as_posix()
    else:
        name = ""
    if not path.exists():
        return found[0]
    if (
        name.startswith("docs/")
        or name in PAGES
        or (name.startswith("benchmarks/") and path.is_file())
    ):
        if found[1].endswith(".md"):
            title = path.read_text(encoding="utf-8").partition("\n")[0][2:]
        else:
            title = ""
        return (
            f"[{title or found[1]}]({PAGES.get(name, name.removeprefix('docs/'))}{found[3] or ''})"
        )
    if found[1].strip("`/") in name:
        return f"`{name}`"
    return f"{found[1]} (`{name}`)"
