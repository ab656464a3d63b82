"""What the page consists of: controls for the fields of `SyncOptions`, HTML of jobs, and colors.

Label, help, choices and default of a control are those that the field declares. Values in HTML are escaped.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr
from markupsafe import Markup

from latentsync_trt.config import SyncOptions
from latentsync_trt.option_fields import choices_of, file_fields
from latentsync_trt.serve.service import JobStatus

PRESET = "preset"
_SHOWN = (
    *("guidance", "silence", "length", "extend", "start", "end"),
    *("offset", "fps", "codec", "crf", "mark", "report"),
)
"""Always visible; others are folded."""
_LEFT_OUT = (PRESET, "faces", "overwrite", "resume", "speaker", "turns")
"""`faces` are those that the page found, `speaker` the recordings that were given to them."""
_UNITS = {"start": "s or m:ss", "end": "s or m:ss", "offset": "ms", "crf": "0 best, 51 worst", "resolution": "px"}
_UNITS |= {"steps": "1 to 999", "guidance": "0 to 20"}
"""What stands beside the label of a field."""
_APART = {"c2pa": "Content credentials (C2PA)"}
"""Headings of their own: a private key is no setting of an encoder."""
_MOST_OPEN = 3
"""Notes that are shown without a click."""
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

_PLAY = Markup('<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M7 4.5v15l12.5-7.5z"/></svg>')

HEADER = "<header><h1>latentsync-trt</h1><p>Give a video new speech: the lips follow it.</p></header>"
ASK = """<p><strong>Paint this face with the built-in model?</strong> The mouth will be a smear.
<code>latentsync-trt setup</code> gets a model for any face.</p>"""
TIMELINE = """<p class="wait" role="status" hidden>This browser cannot play this file. A preview is being made; go on
meanwhile.</p><div class="cut" hidden><div class="handles">
<input type="range" class="from" min="0" step="0.01" aria-label="Sync from">
<input type="range" class="to" min="0" step="0.01" aria-label="Sync until"></div>
<div class="row"><button type="button" class="start">Start here</button><output></output>
<button type="button" class="end">End here</button></div></div>"""
EMPTY = Markup('<div class="empty">{}<p>Your result appears here.</p></div>').format(_PLAY)

_hints = get_type_hints(SyncOptions)
_specs = {spec.name: spec for spec in fields(SyncOptions)}


def preset_control() -> gr.Radio:
    spec = _specs[PRESET]
    return gr.Radio(list(choices_of(_hints[PRESET])), value=spec.default, elem_id=PRESET, **_texts(spec))


def shown_controls() -> dict[str, Any]:
    """Adds controls of the most important options; returns them by name."""
    return {name: _control(_specs[name]) for name in _SHOWN}


def folded_controls() -> dict[str, Any]:
    """Adds controls of all other options, under the headings of the help text; returns them by name."""
    rest = [spec for spec in _specs.values() if spec.name not in (*_SHOWN, *_LEFT_OUT)]
    found: dict[str, Any] = {}
    heading = {spec: _APART.get(spec.name, spec.metadata["group"]) for spec in rest}
    order = list(dict.fromkeys(heading.values()))
    for group, specs in groupby(sorted(rest, key=lambda spec: order.index(heading[spec])), heading.__getitem__):
        gr.Markdown(f"### {group}", elem_classes="group")
        with gr.Row(elem_classes="grid"):
            found |= {spec.name: _control(spec) for spec in specs}
    return found


def changed(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
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
    placeholder = spec.metadata.get("metavar", "").lower()
    if isinstance(spec.default, int | float):
        # Limits are left to the options, whose message says what is wrong.
        return gr.Number(spec.default, placeholder=placeholder, **common)
    return gr.Textbox(spec.default, placeholder=placeholder, lines=1, max_lines=1, **common)


def _default(spec: Field[Any]) -> Any:
    if spec.name == "report":
        return False
    return "" if spec.default is None and choices_of(_hints[spec.name]) else spec.default


def _texts(spec: Field[Any]) -> dict[str, Any]:
    """Returns label and help of a control, with names of options in place of flags."""
    info = _FLAG.sub(lambda flag: flag[2].replace("-", " "), spec.metadata["help"]).replace("`", "")
    unit = f" ({_UNITS[spec.name]})" if spec.name in _UNITS else ""
    return {"label": spec.name.replace("_", " ").capitalize() + unit, "info": info}


def message(text: str = "") -> Markup:
    return Markup('<p role="alert">{}</p>').format(text)


def model(providers: Sequence[str], problem: str) -> str:
    """Returns what runs the model. `problem`: why no job can run, if none can."""
    names = " and ".join("CPU" if each == "cpu" else each for each in providers)
    return Markup("<p>{}</p>").format(problem or (f"runs on {names}" if names else "ready"))


def demo_note(*, other_face: bool) -> str:
    """Returns what the built-in model is for; `other_face`: a video was chosen whose face it does not know."""
    text = "It shows how this page works, with the built-in clip, whose face is the only one that it knows."
    if other_face:
        text = "It knows only the face of the built-in clip; the mouth in this video will be a smear."
    cure = Markup("For your own videos, get the published model: <code>latentsync-trt setup</code>")
    return Markup('<p class="{}"><strong>This is the built-in demo model.</strong> {} {}.</p>').format(
        "warning" if other_face else "", text, cure
    )


def found(people: int, voices: Mapping[int, str] | None = None) -> str:
    """Returns what to do with the people that were found. `voices`: their recordings, if each has its own."""
    if voices is not None:
        names = {number: Path(path).name for number, path in voices.items()}
        given = (f"{number}: {names.get(number, 'stays as it is')}" for number in range(people))
        return Markup("<p>Click on a face and give it a recording. {}</p>").format(" · ".join(given))
    some = f"{people} people were found. Click on one; otherwise the largest face is used."
    return Markup("<p>{}</p>").format("One person was found." if people == 1 else some)


def progress(job: JobStatus, problem: str, *, has_preview: bool, canceling: bool = False) -> str:
    """Returns the state of a job. `problem`: why no job can run, if none can."""
    if canceling:
        return _progress("Canceling…", None, None, "ends after the frames that are being painted")
    rate = f"{job.frames_per_s:.1f} frames/s" if job.frames_per_s else ""
    if job.state == "waiting":
        return _progress("Waiting", None, None, problem or f"number {job.position} in the queue")
    if job.state == "running":
        counted = f"{job.done} of {job.total} frames" if job.total else ""
        left = f"{_duration(job.seconds_left)} left" if job.seconds_left is not None else ""
        bar = _progress((job.stage or "starting").capitalize(), job.done, job.total, counted, rate, left)
        picture = Markup('<img src="{}/preview?frame={}" alt="Newest frame">').format(_address(job.id), job.done)
        return bar + Markup('<div id="preview">{}</div>').format(picture if has_preview else "")
    if job.report is not None:
        counted, took = f"{job.report['frames']} frames", f"took {_duration(job.report['wall_s'])}"
        on = f"on {job.report['provider']}" if job.report.get("provider") else ""
        return _progress("Done", 1, 1, counted, rate, took, on) + _notices(job.report.get("notices", ()))
    return _progress(job.state.capitalize(), 0, 1) + (message(job.error) if job.error else "")


def _progress(stage: str, done: int | None, total: int | None, *details: str) -> Markup:
    share = Markup(' value="{}" max="{}"').format(done, total) if total else ""
    percent = f"{100 * (done or 0) // total} %" if total else ""
    return Markup(
        '<div class="stage"><strong aria-live="polite">{}</strong><span>{}</span></div>'
        '<progress aria-label="Progress"{}></progress><p class="details">{}</p>'
    ).format(stage, percent, share, " · ".join(filter(None, details)))


def _notices(texts: Sequence[str]) -> Markup:
    if not texts:
        return Markup("")
    items = Markup("").join(Markup("<li>{}</li>").format(text) for text in texts)
    title = "1 note" if len(texts) == 1 else f"{len(texts)} notes"
    return Markup('<details class="notices"{}><summary>{}</summary><ul>{}</ul></details>').format(
        Markup(" open") if len(texts) <= _MOST_OPEN else "", title, items
    )


def result(job_id: str, name: str, *, has_page: bool, has_players: bool) -> str:
    """Returns players of source and result, which `compare.js` synchronizes, and links; `name`: of the download."""
    page = Markup('<div id="report"><a class="button" href="{at}/report" target="_blank">Report</a></div>')
    players = Markup(
        """<div id="compare"><div class="players" data-view="wipe">
<figure><video id="before" src="{at}/source" muted playsinline preload="auto" tabindex="-1"></video>
<figcaption>Before</figcaption></figure>
<figure><video id="after" src="{at}/shown" playsinline preload="auto" tabindex="-1"></video>
<figcaption>After</figcaption></figure>
<input id="wipe" type="range" min="0" max="100" value="50" step="0.1" aria-label="Share of the picture before">
</div><p class="unplayable" role="status" hidden>This browser cannot play this kind of video; download the result.</p>
<div class="controls"><button type="button" class="play" aria-label="Play or pause">{play}</button>
<input class="seek" type="range" min="0" max="1" value="0" step="any" aria-label="Position"><output>0:00</output>
<button type="button" class="view" aria-pressed="false">Side by side</button></div></div>"""
    ).format(at=_address(job_id), play=_PLAY)
    wait = Markup('<p class="wait" role="status">A preview is being made, as browsers cannot play these files.</p>')
    links = Markup(
        """<div class="links"><div id="download">
<a class="button" href="{at}/download" download>Download {name}</a></div>{page}</div>"""
    ).format(at=_address(job_id), name=name, page=page.format(at=_address(job_id)) if has_page else "")
    return (players if has_players else wait) + links


def _address(job_id: str) -> str:
    return f"v1/jobs/{job_id}"


def _duration(seconds: float) -> str:
    """Returns 83.2 as "0:01:23"."""
    return str(timedelta(seconds=round(seconds)))


def theme() -> gr.themes.Base:
    made = gr.themes.Default(primary_hue="teal", neutral_hue="zinc", radius_size="lg", font=("system-ui", "sans-serif"))
    light = {name: color for name, (color, _) in _COLORS.items()}
    return made.set(
        block_label_border_width="0px", **light, **{f"{name}_dark": pair[1] for name, pair in _COLORS.items()}
    )
