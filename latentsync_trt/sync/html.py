"""Self-contained HTML pages, from the templates of `assets/reports`, and files that appear completely or not at all."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from latentsync_trt.errors import OutputError
from latentsync_trt.media.files import reason_of
from latentsync_trt.temporary import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and makes its folder; raises `OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as staged:
            # On Linux, names of files may contain bytes that are not UTF-8; in JSON, a backslash stands for them.
            staged.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason_of(error)})") from error


def write_html(template: str, path: Path, **values: Any) -> None:
    """Renders `template` of `assets/reports` into `path`; raises `OutputError` if it cannot be written."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_file(path, environment.get_template(template).render(**values))


def svg(figure: "Figure") -> Markup:
    """A matplotlib figure as an inline `<svg>` element; black parts take the color of the page's text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata=_NO_METADATA)
    drawing = buffer.getvalue().replace("#000000", "currentColor")
    return Markup(drawing[drawing.index("<svg") :])  # noqa: S704 -- made by matplotlib, which escapes text
