"""Writes the files of bench and compare, each completely or not at all: JSON, and self-contained HTML."""

import errno
import io
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from latentsync_trt.errors import OutputError
from latentsync_trt.temporary import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIGITS = 6
_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def make_folder(folder: Path) -> None:
    """Makes `folder` if it is missing; raises `OutputError` if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not show whether this works
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EIO)
        raise OutputError(f"{folder}: cannot be written ({error.strerror})", usage=not full) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and makes its folder; raises `OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as staged:
            # On Linux, names of files may contain bytes that are not UTF-8; in JSON, a backslash stands for them.
            staged.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def plain(value: Any) -> Any:
    """Converts nested mappings, sequences and arrays for JSON: six significant digits; null for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_html(template: str, path: Path, **values: Any) -> None:
    """Renders `template` of `assets/reports` into `path`; raises `OutputError` if it cannot be written."""
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


def png(figure: "Figure") -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
