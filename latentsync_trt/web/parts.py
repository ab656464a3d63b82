"""What the page consists of: controls for the fields of `SyncOptions`, HTML, and colors.

Choices and default of a control are those that the field declares.
"""

import re
from collections.abc import Mapping
from dataclasses import Field, fields
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr
from jinja2 import Environment, FileSystemLoader

from latentsync_trt.config import SyncOptions
from latentsync_trt.measures import Measures
from latentsync_trt.option_fields import choices_of, file_fields
from latentsync_trt.serve.service import JobStatus
from latentsync_trt.validation import from_values

PRESET = "preset"
_SHOWN = (
    *("guidance", "silence", "length", "extend", "start", "end"),
    *("offset", "fps", "codec", "crf", "mark", "report"),
)
"""Always visible; others are folded."""
_LEFT_OUT = (PRESET, "preview_s", "faces", "overwrite", "resume", "speaker", "turns")
"""`preview_s` has a button, and `faces` are those that the page found."""
_UNITS = {"start": "s or m:ss", "end": "s or m:ss", "offset": "ms", "resolution": "px", "guidance": "0 to 20"}
"""What stands beside the label of a field."""
_WORDS = {
    PRESET: (
        "Preset",
        "Quality looks best and takes twice as long as balanced. Fast takes half as long, draft a third: use it to "
        "see whether video and speech fit.",
    ),
    "extend": ("Video too short", "Play it back and forth (pingpong), or start it again (loop)."),
    "crf": ("Picture quality", "0 is best and makes the largest file, 51 is worst.  [default: 16 to 24, by codec]"),
    "mark": (
        "Say that AI changed it",
        "In the file's metadata, for programs and websites; players do not show it.",
    ),
    "fps": ("Frame rate", "That of the video, or 25 frames per second, for which the model was made."),
    "report": ("Page with measures", "Adds a page with measures and pictures to the result."),
}
"""Label and help where those of the command line say too little here."""
_FILES = file_fields(SyncOptions).keys() - {"report"}
_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)")

_COLORS = {
    "body_background_fill": ("#fafafa", "#131316"),
    "body_text_color_subdued": ("#5b5b63", "#a3a3ad"),
    "background_fill_primary": ("#ffffff", "#1c1c20"),
    "block_label_background_fill": ("transparent", "transparent"),
    "block_title_text_color": ("*body_text_color", "*body_text_color"),
    "input_placeholder_color": ("*body_text_color_subdued", "*body_text_color_subdued"),
    "button_primary_background_fill": ("#0f766e", "#0f766e"),
    "button_primary_background_fill_hover": ("#115e59", "#0d8a80"),
    "checkbox_background_color_selected": ("#0f766e", "#0f766e"),
}
"""Light and dark; Gradio's own accent and grays have too little contrast."""


_pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
_pages.filters["duration"] = lambda seconds: str(timedelta(seconds=round(seconds)))
html: Any = _pages.get_template("page.html.j2").module
"""Each macro of the file as a function that returns HTML."""

_hints = get_type_hints(SyncOptions)
_specs = {spec.name: spec for spec in fields(SyncOptions)}


def preset_control() -> gr.Radio:
    spec = _specs[PRESET]
    choices = [(name.capitalize(), name) for name in choices_of(_hints[PRESET])]
    return gr.Radio(choices, value=spec.default, elem_id=PRESET, **_texts(spec))


def shown_controls() -> dict[str, Any]:
    """Adds controls of the most important options; returns them by name."""
    return {name: _control(_specs[name]) for name in _SHOWN}


def folded_controls() -> dict[str, Any]:
    """Adds controls of all other options, under the headings of the help text; returns them by name."""
    rest = [spec for spec in _specs.values() if spec.name not in (*_SHOWN, *_LEFT_OUT)]
    found: dict[str, Any] = {}
    for group in dict.fromkeys(spec.metadata["group"] for spec in rest):
        gr.Markdown(f"### {group}", elem_classes="group")
        with gr.Row(elem_classes="grid"):
            found |= {spec.name: _control(spec) for spec in rest if spec.metadata["group"] == group}
    return found


def changed(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns options that are not at their defaults, and the files among them, from the values of controls."""
    given = {name: value for name, value in values.items() if value not in (None, "", _default(_specs[name]))}
    files = {name: given.pop(name) for name in _FILES & given.keys()}
    return given, files


def _control(spec: Field[Any]) -> Any:
    hint, common = _hints[spec.name], {**_texts(spec), "elem_id": f"option-{spec.name}", "min_width": 200}
    if spec.name in _FILES:
        with gr.Column(min_width=200, elem_classes="file"):
            gr.Markdown(common.pop("info"), elem_classes="caption")
            return gr.File(height=110, **common)
    if bool in {hint, *get_args(hint)} or spec.name == "report":
        return gr.Checkbox(_default(spec), **common)
    if choices := choices_of(hint):
        unset = [("default", "")] if NoneType in get_args(hint) else []
        return gr.Dropdown([*unset, *choices], value=_default(spec), filterable=False, **common)
    common["placeholder"] = spec.metadata.get("metavar", "").lower()
    if isinstance(spec.default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(spec.default, **common)
    return gr.Textbox(spec.default, max_lines=1, **common)


def _default(spec: Field[Any]) -> Any:
    if spec.name == "report":
        return False
    return "" if spec.default is None and choices_of(_hints[spec.name]) else spec.default


def _texts(spec: Field[Any]) -> dict[str, Any]:
    """Returns label and help of a control."""
    label = spec.name.replace("_", " ").capitalize() + (f" ({_UNITS[spec.name]})" if spec.name in _UNITS else "")
    label, info = _WORDS.get(spec.name, (label, without_flags(spec.metadata["help"])))
    return {"label": label, "info": info}


def without_flags(text: str) -> str:
    """Returns a text of the command line with names of options in place of flags."""
    return _FLAG.sub(lambda flag: flag[2].replace("-", " "), text).replace("`", "")


def job_label(job: JobStatus, settings: Mapping[str, Any]) -> str:
    """Returns the line of a job in the list: what tells it from others, and its state."""
    at = datetime.fromtimestamp(job.created_s).astimezone()
    day = "" if at.date() == datetime.now().astimezone().date() else f"{at:%b} {at.day}, "
    what = [settings.get("values", {}).get(PRESET), "preview" if "preview_s" in settings.get("options", {}) else ""]
    return " · ".join(filter(None, [job.files.get("video"), *what, f"{day}{at:%H:%M:%S}", job.state]))


def verdict(job: JobStatus) -> dict[str, str]:
    """Returns whether the lips of a result follow the speech, and how that looks; empty where it was not measured."""
    try:
        measures = from_values(Measures, (job.report or {}).get("quality"), "quality")
    except ValueError:  # nothing was measured, or by another version
        return {}
    text, kinds = without_flags(str(measures)), {each.verdict for each in measures.lips}
    look = "doubt" if measures.alarm or "weak" in kinds else "open" if "cannot tell" in kinds else "follows"
    return {"look": look, "text": text[:1].upper() + text[1:]}


def theme() -> gr.themes.Base:
    made = gr.themes.Default(primary_hue="teal", neutral_hue="zinc", radius_size="lg", font=("system-ui", "sans-serif"))
    dark = {f"{name}_dark": color for name, (_, color) in _COLORS.items()}
    return made.set(block_label_border_width="0px", **{name: color for name, (color, _) in _COLORS.items()}, **dark)
