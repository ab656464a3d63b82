"""Reports: one template makes every self-contained HTML page; files appear completely or not at all."""

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.files import whole_file
from latentsync_trt.media.files import reason_of
from latentsync_trt.paths import check_file_to_write, local_path

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

_SUFFIXES = (".html", ".htm")
_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """Pictures side by side with a caption: PNG or JPEG files."""

    files: Sequence[bytes]
    caption: str

    @property
    def sources(self) -> list[str]:
        """The pictures as URLs with their content."""
        return [f"data:image/{_kind(file)};base64,{b64encode(file).decode('ascii')}" for file in self.files]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A part of a page, shown in the order of its fields.

    `rows`: of a table below its `heads`; without heads, pairs of name and value. `drawing`: see
    `svg`. `video`: the URL of a file beside the page. `notes`: a list.
    """

    title: str = ""
    rows: Sequence[Sequence[str]] = ()
    heads: Sequence[str] = ()
    pictures: Sequence[Pictures] = ()
    video: str = ""
    drawing: "Markup | None" = None
    text: Sequence[str] = ()
    notes: Sequence[str] = ()


def page_path(name: object, option: str) -> Path:
    """The path that `option` names; raises `InputError` if no page can be written there."""
    path = local_path(str(name), option)
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{option} {path}: is not the name of a page; end it with .html")
    check_file_to_write(path, option)
    return path


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Writes a page; raises `OutputError` if that cannot be done."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    write_file(path, environment.get_template("report.html.j2").render(title=title, sections=sections))


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and makes its folder; raises `OutputError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as staged:
            # On Linux, names of files may contain bytes that are not UTF-8; in JSON, a backslash stands for them.
            staged.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason_of(error)})") from error


def svg(figure: "Figure") -> "Markup":
    """A matplotlib figure as an inline `<svg>` element; black parts take the color of the page's text."""
    import matplotlib
    from markupsafe import Markup

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


def _kind(file: bytes) -> str:
    return "png" if file.startswith(b"\x89PNG") else "jpeg"
