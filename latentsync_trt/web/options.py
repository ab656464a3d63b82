"""Controls for the fields of `SyncOptions`: label, help, choices and default are those that the fields declare."""

import re
from dataclasses import Field, fields
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr

from latentsync_trt.config import SyncOptions
from latentsync_trt.option_fields import choices_of

PRESET = "preset"
_SHOWN = (
    *("guidance", "silence", "length", "extend", "start", "end"),
    *("offset", "fps", "codec", "crf", "mark", "report"),
)
"""Always visible; others are folded."""
_LEFT_OUT = (PRESET, "faces", "resume", "speaker", "turns")
"""`faces` are those that the page found; the page takes one recording, for one face."""
_ENDLESS = 1000
"""Larger limits are not worth a word."""
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


def changed(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Options that are not at their defaults, and the files among them, from the values of controls."""
    given = {name: value for name, value in values.items() if value not in (None, "", _control_value(_specs[name]))}
    files = {name: Path(value) for name, value in given.items() if _is_file(name)}
    return {name: value for name, value in given.items() if name not in files}, files


def _control(spec: Field[Any]) -> Any:
    kinds = {_hints[spec.name], *get_args(_hints[spec.name])}
    common: dict[str, Any] = {**_texts(spec), "elem_id": f"option-{spec.name}", "min_width": 200}
    default = _DEFAULT.search(spec.metadata["help"])
    unset = _words(default[1]) if default else ""
    if bool in kinds or spec.name == "report":
        return gr.Checkbox(_control_value(spec), **common)
    if choices := choices_of(_hints[spec.name]):
        without = [("default", "")] if NoneType in kinds else []
        return gr.Dropdown([*without, *choices], value=_control_value(spec), filterable=False, **common)
    if _is_file(spec.name):
        with gr.Column(min_width=200, elem_classes="file"):
            control = gr.File(label=common["label"], elem_id=common["elem_id"], height=110)
            gr.Markdown(common["info"], elem_classes="caption")
        return control
    if isinstance(spec.default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(_control_value(spec), placeholder=unset, **common)
    hint = unset.partition(";")[0] or spec.metadata.get("metavar", "").lower()
    return gr.Textbox(_control_value(spec), placeholder=hint, lines=1, max_lines=1, **common)


def _control_value(spec: Field[Any]) -> Any:
    if spec.name == "report":
        return False
    return "" if spec.default is None and choices_of(_hints[spec.name]) else spec.default


def _is_file(name: str) -> bool:
    return Path in get_args(_hints[name]) and name != "report"


def _texts(spec: Field[Any]) -> dict[str, str]:
    """Label and help of a control."""
    metadata = spec.metadata
    text = _words(_DEFAULT.sub("", metadata["help"]).strip())
    if metadata.get("maximum", _ENDLESS) < _ENDLESS:
        text += f" {metadata['minimum']:g} to {metadata['maximum']:g}."
    label = _ACRONYM.sub(lambda word: word[0].upper(), spec.name.replace("_", " ").capitalize())
    return {"label": label, "info": text}


def _words(text: str) -> str:
    """A help text with names of options in place of flags."""
    return _FLAG.sub(lambda flag: flag[2].replace("-", " "), text).replace("`", "")
