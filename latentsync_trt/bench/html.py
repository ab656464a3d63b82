"""Reports as one HTML file that needs nothing else: jinja2 templates, matplotlib figures and pictures inline."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from latentsync_trt.bench.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def write_html(template: str, path: Path, **values: Any) -> None:
    """Renders `template` of `assets/reports` with `values` into the file `path`.

    Raises:
        OutputError: the file cannot be written.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_file(path, environment.get_template(template).render(**values))


def svg(figure: "Figure") -> Markup:
    """A matplotlib figure as an inline `<svg>` element; what is drawn in black takes the color of the page's text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata=_NO_METADATA)
    drawing = buffer.getvalue().replace("#000000", "currentColor")
    return Markup(drawing[drawing.index("<svg") :])  # noqa: S704 -- made by matplotlib, which escapes text
