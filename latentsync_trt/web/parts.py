"""What the page consists of: HTML, and controls for the fields of `SyncOptions`, as these declare
them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr
from jinja2 import Environment, FileSystemLoader

from latentsync_trt.config import SyncOptions
from latentsync_trt.measures import Measures
from latentsync_trt.option_fields import choices_of, file_fields, from_values
from latentsync_trt.serve.jobs import JobStatus

PRESET = "preset"
SHOWN = [
    "guidance",
    "silence",
    "length",
    "extend",
    "start",
    "end",
    "offset",
    "fps",
    "codec",
    "crf",
    "mark",
    "report",
]
"""Always visible; others are folded."""
_LEFT_OUT = ("preview_s", "faces", "overwrite", "resume", "speaker", "turns")
"""`preview_s` has a button, and `faces` are those that the page found."""
_LABELS = {
    "start": "Start (s or m:ss)",
    "end": "End (s or m:ss)",
    "offset": "Offset (ms)",
    "resolution": "Resolution (px)",
    "guidance": "Guidance (0 to 20)",
    "extend": "Video too short",
    "crf": "Picture quality",
    "mark": "Say that AI changed it",
    "fps": "Frame rate",
    "report": "Page with measures",
}
"""Where the field's name says too little."""
FILES = file_fields(SyncOptions).keys() - {"report"}
_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)")

_pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
_pages.filters["duration"] = lambda seconds: str(timedelta(seconds=round(seconds)))
_hints = get_type_hints(SyncOptions)
_specs = {spec.name: spec for spec in fields(SyncOptions) if spec.name not in _LEFT_OUT}
_defaults = {
    name: "" if spec.default is None and choices_of(_hints[name]) else spec.default
    for name, spec in _specs.items()
} | {"report": False}
FOLDED = [name for name in _specs if name not in (PRESET, *SHOWN)]


def controls(names: Iterable[str]) -> dict[str, Any]:
    """Adds controls of options; returns them by name."""
    return {name: _control(_specs[name]) for name in names}


def changed(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns options that are not at their defaults, and the files among them, from the values of
    controls.
    """
    given = {
        name: values[name]
        for name, default in _defaults.items()
        if values.get(name) not in (None, "", default)
    }
    files = {name: given.pop(name) for name in FILES & given.keys()}
    return given, files


def _control(spec: Field[Any]) -> Any:
    info = without_flags(spec.metadata["help"])
    hint = _hints[spec.name]
    common: dict[str, Any] = {"label": _label(spec.name), "info": info, "min_width": 200}
    common["elem_id"] = f"option-{spec.name}"
    if spec.name == PRESET:
        presets = [(name.capitalize(), name) for name in choices_of(hint)]
        return gr.Radio(presets, value=spec.default, elem_id=PRESET, label="Preset", info=info)
    if spec.name in FILES:
        with gr.Column(min_width=200, elem_classes="file"):
            gr.Markdown(common.pop("info"), elem_classes="caption")
            return gr.File(height=110, **common)
    if bool in {hint, *get_args(hint)} or spec.name == "report":
        return gr.Checkbox(_defaults[spec.name], **common)
    if choices := choices_of(hint):
        unset = [("default", "")] if NoneType in get_args(hint) else []
        return gr.Dropdown(
            [*unset, *choices], value=_defaults[spec.name], filterable=False, **common
        )
    common["placeholder"] = spec.metadata.get("metavar", "").lower()
    if isinstance(spec.default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(spec.default, **common)
    return gr.Textbox(spec.default, max_lines=1, **common)


def without_flags(text: str) -> str:
    """Returns a text of the command line with the labels of controls in place of flags."""
    return _FLAG.sub(
        lambda flag: _label(flag[2].replace("-", "_")).partition(" (")[0], text
    ).replace("`", "")


def _label(option: str) -> str:
    return _LABELS.get(option, option.replace("_", " ").capitalize())


_pages.filters["plain"] = without_flags
html: Any = _pages.get_template("page.html.j2").module
"""Each macro of the file as a function that returns HTML."""


def fits(control: Any, value: Any) -> bool:
    """Whether a control can have a value."""
    if isinstance(control, gr.Dropdown | gr.Radio):
        return value in [choice for _, choice in control.choices]
    if isinstance(control, gr.Checkbox):
        return isinstance(value, bool)
    if isinstance(control, gr.Number):
        return value is None or isinstance(value, int | float)
    return isinstance(value, str)


def job_label(job: JobStatus, settings: Mapping[str, Any]) -> str:
    """Returns the line of a job in the list: what tells it from others, and its state."""
    at = datetime.fromtimestamp(job.created_s).astimezone()
    if at.date() == datetime.now().astimezone().date():
        day = ""
    else:
        day = f"{at:%b} {at.day}, "
    what = [
        settings.get("values", {}).get(PRESET),
        "preview" if "preview_s" in settings.get("options", {}) else "",
    ]
    return " · ".join(
        filter(None, [job.files.get("video"), *what, f"{day}{at:%H:%M:%S}", job.state])
    )


def verdict(job: JobStatus) -> dict[str, str]:
    """Returns whether the lips of a result follow the speech, and how that looks; empty where it
    was not measured.
    """
    try:
        measures = from_values(Measures, (job.report or {}).get("quality"), "quality")
    except ValueError:  # nothing was measured, or by another version
        return {}
    text = str(measures)
    kinds = {each.verdict for each in measures.lips}
    if measures.alarm or "weak" in kinds:
        look = "doubt"
    else:
        look = "open" if "cannot tell" in kinds else "follows"
    return {"look": look, "text": text[:1].upper() + text[1:]}
