"""Reports as one HTML file that needs nothing else: jinja2 templates, matplotlib figures and pictures inline."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from latentsync_trt.errors import OutputError
from latentsync_trt.types import UInt8Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def write_html(template: str, path: Path, **values: Any) -> None:
    """Renders `template` of `assets/reports` with `values` into the file `path`, and makes its folder.

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
    content = environment.get_template(template).render(**values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def svg(figure: "Figure") -> Markup:
    """A matplotlib figure as an inline `<svg>` element; what is drawn in black takes the color of the page's text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata=_NO_METADATA)
    drawing = buffer.getvalue().replace("#000000", "currentColor")
    return Markup(drawing[drawing.index("<svg") :])  # noqa: S704 -- made by matplotlib, which escapes text


def png_url(picture: UInt8Array) -> str:
    """A picture, uint8 `(H, W, 3)` RGB, as a `data:` URL."""
    _, encoded = cv2.imencode(".png", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return "data:image/png;base64," + base64.b64encode(encoded.tobytes()).decode("ascii")
