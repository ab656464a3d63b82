"""Controls for the fields of `SyncOptions`: label, help, choices and default are those that the fields declare."""

import re
from dataclasses import Field, fields
from itertools import groupby
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr

from latentsync_trt.config import SyncOptions
from latentsync_trt.option_fields import choices_of, file_fields

PRESET = "preset"
_SHOWN = (
    *("guidance", "silence", "length", "extend", "start", "end"),
    *("offset", "fps", "codec", "crf", "mark", "report"),
)
"""Always visible; others are folded."""
_LEFT_OUT = (PRESET, "faces", "resume", "speaker", "turns")
"""`faces` are those that the page found; the page takes one recording, for one face."""
_FILES = file_fields(SyncOptions).keys() - {"report"}
_ACRONYM = re.compile(r"\b(fps|crf|c2pa)\b", re.IGNORECASE)
_DEFAULT = re.compile(r"\s*\[default: (.*)\]")
_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)")

_hints = get_type_hints(SyncOptions)
_specs = {spec.name: spec for spec in fields(SyncOptions)}


def preset_control(**settings: Any) -> gr.Radio:
    """The choice of the preset; `settings`: of the control."""
    spec = _specs[PRESET]
    return gr.Radio(list(choices_of(_hints[PRESET])), value=spec.default, **_texts(spec), **settings)


def shown_controls() -> dict[str, Any]:
    """Controls of the options that matter most, by name."""
    return {name: _control(_specs[name]) for name in _SHOWN}


def folded_controls() -> dict[str, Any]:
    """Controls of all other options, by name, under the headings of the help text."""
    rest = [spec for spec in _specs.values() if spec.name not in (*_SHOWN, *_LEFT_OUT)]
    found: dict[str, Any] = {}
    for group, specs in groupby(rest, lambda spec: spec.metadata["group"]):
        gr.Markdown(f"### {group}", elem_classes="group")
        with gr.Row(elem_classes="grid"):
            found |= {spec.name: _control(spec) for spec in specs}
    return found


def changed(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Options that are not at their defaults, and the files among them, from the values of controls."""
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
    told = _DEFAULT.search(spec.metadata["help"])
    placeholder = _words(told[1]).partition(";")[0] if told else spec.metadata.get("metavar", "").lower()
    if isinstance(spec.default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(spec.default, placeholder=placeholder, **common)
    return gr.Textbox(spec.default, placeholder=placeholder, lines=1, max_lines=1, **common)


def _default(spec: Field[Any]) -> Any:
    if spec.name == "report":
        return False
    return "" if spec.default is None and choices_of(_hints[spec.name]) else spec.default


def _texts(spec: Field[Any]) -> dict[str, Any]:
    """Label and help of a control."""
    label = _ACRONYM.sub(lambda word: word[0].upper(), spec.name.replace("_", " ").capitalize())
    return {"label": label, "info": _words(_DEFAULT.sub("", spec.metadata["help"]).strip())}


def _words(text: str) -> str:
    """A help text with names of options in place of flags."""
    return _FLAG.sub(lambda flag: flag[2].replace("-", " "), text).replace("`", "")
