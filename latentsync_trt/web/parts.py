"""What the page consists of: HTML, and controls for the fields of `SyncOptions`, as these declare
them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import gradio as gr
from jinja2 import Environment, FileSystemLoader

from latentsync_trt.config import SyncOptions
from latentsync_trt.measure.time_bands import TimeBand, time_bands_of
from latentsync_trt.measures import Measures
from latentsync_trt.option_fields import choices_of, file_fields, from_values
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.types import SyncReport

PRESET = "preset"
"""The option that is chosen beside the inputs."""

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
"""Options that are always visible; others are folded."""

_LEFT_OUT = (
    *("preview_s", "faces", "overwrite", "resume", "speaker", "turns"),
    *("redo", "keep_source", "backup"),
)
"""Options without a control: `preview_s` has a button, and `faces` are what the page finds."""

_LABELS = {
    "start": "Start (s or m:ss)",
    "end": "End (s or m:ss)",
    "offset": "Offset (ms)",
    "resolution": "Resolution (px)",
    "guidance": "Guidance (0 to 20)",
    "extend": "Video too short",
    "crf": "Picture quality",
    "mark": "Mark as AI-edited",
    "fps": "Frame rate",
    "report": "Page with measures",
}
"""Labels of options whose name says too little."""

FILE_FIELDS = file_fields(SyncOptions).keys() - {"report"}
_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)")
"""A flag in a help text."""

REPORTS = Path(__file__).parents[1] / "assets" / "reports"
"""Templates and style of what reports have, too."""
_pages = Environment(
    loader=FileSystemLoader([Path(__file__).parent, REPORTS]),
    autoescape=True,
)
_pages.filters["duration"] = lambda seconds: str(timedelta(seconds=round(seconds)))
_hints_of_options = get_type_hints(SyncOptions)
_fields = {field.name: field for field in fields(SyncOptions) if field.name not in _LEFT_OUT}
FOLDED = [name for name in _fields if name not in (PRESET, *SHOWN)]


def _control_default(name: str) -> Any:
    """Returns the value of an untouched control."""
    default = _fields[name].default
    if name == "report":
        return False
    if default is None and choices_of(_hints_of_options[name]):
        return ""
    return default


def preset_choices() -> list[tuple[str, str]]:
    """Returns the presets, as labels and values."""
    return [(choice.capitalize(), choice) for choice in choices_of(_hints_of_options[PRESET])]


def controls(names: Iterable[str]) -> dict[str, Any]:
    """Adds controls of options; returns them by name."""
    return {name: _control(_fields[name]) for name in names}


def changed(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns options that are not at their defaults, and the files among them, from the values of
    controls.
    """
    options = {}
    files = {}
    for name in _fields:
        value = values.get(name)
        if value in (None, "", _control_default(name)):
            continue
        if name in FILE_FIELDS:
            files[name] = value
        else:
            options[name] = value
    return options, files


def _control(field: Field[Any]) -> Any:
    name = field.name
    info = without_flags(field.metadata["help"])
    hint = _hints_of_options[name]
    default = _control_default(name)
    choices = choices_of(hint)
    if name == PRESET:
        info = info[0].upper() + info[1:]  # it begins with a preset
        return gr.Radio(preset_choices(), value=default, elem_id=PRESET, label="Preset", info=info)
    common: dict[str, Any] = {
        "label": _control_label(name),
        "min_width": 200,
        "elem_id": f"option-{name}",
    }
    if name in FILE_FIELDS:
        with gr.Column(min_width=200, elem_classes="file"):
            gr.Markdown(info, elem_classes="caption")
            return gr.File(height=110, **common)
    common["info"] = info
    if isinstance(default, bool):
        return gr.Checkbox(default, **common)
    if choices:
        unset = [("default", "")] if default == "" else []
        return gr.Dropdown([*unset, *choices], value=default, filterable=False, **common)
    common["placeholder"] = field.metadata.get("metavar", "").lower()
    if isinstance(default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(default, **common)
    return gr.Textbox(default, max_lines=1, **common)


def without_flags(text: str) -> str:
    """Returns a text of the command line with the labels of controls in place of flags."""

    def label_of(flag: re.Match[str]) -> str:
        return _control_label(flag[2].replace("-", "_")).partition(" (")[0]

    return _FLAG.sub(label_of, text).replace("`", "")


def _control_label(option: str) -> str:
    return _LABELS.get(option, option.replace("_", " ").capitalize())


_pages.filters["plain"] = without_flags
html: Any = _pages.get_template("page.html.j2").module
"""Each macro of the file as a function that returns HTML."""


def fits_control(control: Any, value: Any) -> bool:
    """Returns whether a control can have a value."""
    if isinstance(control, gr.Dropdown | gr.Radio):
        return value in [choice for _, choice in control.choices]
    if isinstance(control, gr.Checkbox):
        return isinstance(value, bool)
    if isinstance(control, gr.Number):
        return value is None or isinstance(value, int | float)
    return isinstance(value, str)


def job_label(job: JobStatus, settings: Mapping[str, Any]) -> str:
    """Returns the line of a job in the list: what tells it from others, and its state."""
    created = datetime.fromtimestamp(job.created_s).astimezone()
    time = f"{created:%H:%M:%S}"
    if created.date() != datetime.now().astimezone().date():
        time = f"{created:%b} {created.day}, {time}"
    preset = settings.get("values", {}).get(PRESET)
    kind = "preview" if "preview_s" in settings.get("options", {}) else ""
    words = [job.files.get("video"), preset, kind, settings.get("redo"), time, job.state]
    return " · ".join(filter(None, words))


def bands(job: JobStatus) -> list[TimeBand]:
    """Returns what a timeline shows of a result; nothing of one of another version."""
    try:
        report = from_values(SyncReport, job.report, "report")
    except ValueError:
        return []
    return time_bands_of(report)


def verdict(job: JobStatus) -> dict[str, str]:
    """Returns whether the lips of a result follow the speech, and how that looks; empty where it
    was not measured.
    """
    try:
        measures = from_values(Measures, (job.report or {}).get("quality"), "quality")
    except ValueError:  # nothing was measured, or by another version
        return {}
    text = str(measures)
    verdicts = {lips.verdict for lips in measures.lips}
    look = "follows"
    if measures.alarm or measures.misfits or "weak" in verdicts:
        look = "doubt"
    elif "cannot tell" in verdicts:
        look = "open"
    return {"look": look, "text": text[:1].upper() + text[1:]}
