"""What reports are made of: one HTML file that needs nothing else, its tables and its figures."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from latentsync_trt.errors import OutputError

_STYLE = Path(__file__).parent.parent / "assets" / "reports" / "report.css"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

Cells = Sequence[str]


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A page of HTML `parts`; `title` is text, `style` CSS beyond that of all reports."""
    css = _STYLE.read_text(encoding="utf-8") + style
    return _PAGE.format(title=escape(title), style=css, body="\n".join(parts))


def write_page(content: str, path: Path) -> None:
    """Writes a page, and its folder where there is none; raises `OutputError` if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def table(heads: Cells, lines: Iterable[Cells]) -> str:
    """A table of text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(lines: Iterable[tuple[str, str]]) -> str:
    """Names and values, text."""
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in lines)
    return f'<table class="facts">{rows}</table>'


def figure_of(drawing: str, caption: str) -> str:
    """An HTML or SVG `drawing` with its caption, text."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
