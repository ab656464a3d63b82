"""Hooks of mkdocs: parts that are made from the code, pages from files outside `docs/`, and links to such files."""

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

_MARKER = re.compile(r"^<!-- site: (\w+) ?(\S*) -->$", re.MULTILINE)
_FACT = re.compile(r"<!-- (?:table: \w+|/table|[a-z]\w+) -->")
_FLAG, _UNBROKEN = re.compile(r"(?<![\w-])-{1,2}[a-z][\w-]*"), r'<span class="flag">\g<0></span>'
_LINK = re.compile(r"\[([^\]]*)\]\(([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages from the repository's root, the licenses, and the rows that pages link to."""
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        files.append(File.generated(config, PAGES[name], abs_src_path=str(ROOT / name)))
    texts = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("NOTICE", "LICENSE"))
    files.append(File.generated(config, "license.md", content=f"# License\n\n```text\n{texts}\n```\n"))
    for rows in sorted((ROOT / "benchmarks").glob("*.json")):
        files.append(File.generated(config, f"benchmarks/{rows.name}", abs_src_path=str(rows)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The page with its made parts, highlighted commands, and links that the site has."""
    source = page.file.abs_src_path
    markdown = _FACT.sub("", facts.updated(markdown))
    markdown = _with_links(markdown, Path(source).parent if source else ROOT)
    markdown = _MARKER.sub(lambda found: _PARTS[found[1]](*filter(None, [found[2]])), markdown)
    return re.sub(r"^```console$", "```bash", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: object) -> str:
    """Commands whose flags are not broken at their dashes."""
    return re.sub(r"<code>([^<\n]*)</code>", lambda found: f"<code>{_FLAG.sub(_UNBROKEN, found[1])}</code>", html)


def _include(path: str) -> str:
    """A file's Markdown without its first heading; `path` is relative to the repository."""
    text = (ROOT / path).read_text(encoding="utf-8").partition("\n")[2]
    return _with_links(text, (ROOT / path).parent)


def _with_links(markdown: str, folder: Path) -> str:
    return _LINK.sub(partial(_link, folder), markdown)


def _link(folder: Path, found: re.Match[str]) -> str:
    """The link as the site has it; what is only in the repository becomes its path."""
    path = (folder / found[2]).resolve()
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if not path.exists():
        return found[0]
    if name.startswith("docs/") or name in PAGES or (name.startswith("benchmarks/") and path.is_file()):
        title = path.read_text(encoding="utf-8").partition("\n")[0][2:] if found[1].endswith(".md") else ""
        return f"[{title or found[1]}]({PAGES.get(name, name.removeprefix('docs/'))}{found[3] or ''})"
    return f"`{name}`" if found[1].strip("`/") in name else f"{found[1]} (`{name}`)"


_PARTS = {
    "api": reference.api,
    "include": _include,
    "numbers": plots.numbers,
    "options": reference.options,
    "plot": plots.figure,
}
