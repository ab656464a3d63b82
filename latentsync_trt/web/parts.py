"""What the page consists of: controls for the fields of `SyncOptions`, HTML of jobs, and colors.

Choices and default of a control are those that the field declares. Values in HTML are escaped.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from datetime import datetime, timedelta
from itertools import groupby
from types import NoneType
from typing import Any, get_args, get_type_hints

import gradio as gr
from markupsafe import Markup

from latentsync_trt.config import SyncOptions
from latentsync_trt.measures import Measures
from latentsync_trt.option_fields import choices_of, file_fields
from latentsync_trt.serve.service import JobStatus
from latentsync_trt.types import Progress
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
    "extend": ("Where the video is too short", "Play it back and forth (pingpong), or start it again (loop)."),
    "crf": ("Picture quality (0 best, 51 worst)", "The better, the larger is the file.  [default: 16 to 24, by codec]"),
    "mark": (
        "Say in the file that AI changed it",
        "In its metadata, for programs and websites; players do not show it.",
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

HEADER = "<header><h1>latentsync-trt</h1><p>Give a video new speech: the lips follow it.</p></header>"
TIMELINE = """<div class="cut" hidden><div class="handles">
<input type="range" class="from" min="0" step="0.01" aria-label="Sync from">
<input type="range" class="to" min="0" step="0.01" aria-label="Sync until"></div>
<div class="row"><button type="button" class="start">Start here</button><output></output>
<button type="button" class="end">End here</button></div></div>"""
_PLAY = Markup('<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M7 4.5v15l12.5-7.5z"/></svg>')
EMPTY = Markup('<div class="empty">{}<p>Your result appears here.</p></div>').format(_PLAY)

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
    order = list(dict.fromkeys(spec.metadata["group"] for spec in rest))
    found: dict[str, Any] = {}
    rest.sort(key=lambda spec: order.index(spec.metadata["group"]))
    for group, specs in groupby(rest, lambda spec: spec.metadata["group"]):
        gr.Markdown(f"### {group}", elem_classes="group")
        with gr.Row(elem_classes="grid"):
            found |= {spec.name: _control(spec) for spec in specs}
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
    """Returns label and help of a control."""
    label = spec.name.replace("_", " ").capitalize() + (f" ({_UNITS[spec.name]})" if spec.name in _UNITS else "")
    label, info = _WORDS.get(spec.name, (label, without_flags(spec.metadata["help"])))
    return {"label": label, "info": info}


def without_flags(text: str) -> str:
    """Returns a text of the command line with names of options in place of flags."""
    return _FLAG.sub(lambda flag: flag[2].replace("-", " "), text).replace("`", "")


def message(text: str = "") -> str:
    return Markup('<p role="alert">{}</p>').format(text)


def note(text: str) -> str:
    return Markup('<p role="status">{}</p>').format(text)


def model(providers: Sequence[str], problem: str) -> str:
    """Returns what runs the model. `problem`: why no job can run, if none can."""
    names = " and ".join("CPU" if each == "cpu" else each for each in providers)
    return note(problem or (f"runs on {names}" if names else "ready"))


def demo_note(*, other_face: bool) -> str:
    """Returns what the built-in model is for; `other_face`: one that it does not know would be painted."""
    text = "It shows how this page works, with the built-in clip, whose face is the only one that it knows."
    if other_face:
        text = "It knows only the face of the built-in clip; the mouth in this video will be a smear."
    return Markup(
        '<p class="{}"><strong>This is the built-in demo model.</strong> {} For your own videos, get the published '
        "model: <code>latentsync-trt setup</code>.</p>"
    ).format("warning" if other_face else "", text)


def searching(progress: Progress) -> str:
    """Returns how far the search for people is."""
    counted = f": {progress.done} of {progress.total} frames" if progress.total else ""
    return note(f"{progress.stage.capitalize()}{counted}…")


def found(people: int) -> str:
    """Returns what to do with the people that were found."""
    some = f"{people} people were found. Click on one; otherwise the largest face is used."
    return note("One person was found." if people == 1 else some)


def job_label(job: JobStatus, settings: Mapping[str, Any]) -> str:
    """Returns the line of a job in the list: what tells it from others, and its state."""
    at = datetime.fromtimestamp(job.created_s).astimezone()
    day = "" if at.date() == datetime.now().astimezone().date() else f"{at:%b} {at.day}, "
    what = [settings.get("values", {}).get(PRESET), "preview" if "preview_s" in settings.get("options", {}) else ""]
    return " · ".join(filter(None, [job.files.get("video"), *what, f"{day}{at:%H:%M:%S}", job.state]))


def progress(job: JobStatus, problem: str, *, has_preview: bool, canceling: bool) -> str:
    """Returns the state of a job. `problem`: why no job can run, if none can."""
    report = job.report or {}
    if canceling:
        return _bar("Canceling…", None, None, "ends after the frames that are being painted")
    if job.state == "waiting":
        return _bar("Waiting", None, None, problem or f"number {job.position} in the queue")
    rate = f"{job.frames_per_s:.1f} frames/s" if job.frames_per_s else ""
    if job.state == "running":
        counted = f"{job.done} of {job.total} frames" if job.total else ""
        left = f"{_duration(job.seconds_left)} left" if job.seconds_left is not None else ""
        picture = Markup('<img src="v1/jobs/{}/preview?frame={}" alt="Newest frame">').format(job.id, job.done)
        bar = _bar((job.stage or "starting").capitalize(), job.done, job.total, counted, rate, left)
        return bar + Markup('<div id="preview">{}</div>').format(picture if has_preview else "")
    if job.state == "done":
        took = f"took {_duration(report.get('wall_s', 0))}"
        bar = _bar("Done", 1, 1, f"{job.done} frames", rate, took, f"on {report.get('provider', '')}")
        items = Markup("").join(Markup("<li>{}</li>").format(text) for text in report.get("notices", ()))
        notices = Markup('<details class="notices" open><summary>Notes</summary><ul>{}</ul></details>').format(items)
        return bar + _verdict(report.get("quality")) + (notices if items else "")
    return _bar(job.state.capitalize(), 0, 1) + (message(job.error) if job.error else "")


def _verdict(quality: Any) -> str:
    """Returns whether the lips follow the speech; `quality`: the JSON of `Measures`."""
    try:
        measures = from_values(Measures, quality, "quality")
    except ValueError:  # nothing was measured, or by another version
        return ""
    follows = not measures.alarm and all(each.verdict == "follows" for each in measures.lips)
    text = without_flags(str(measures))
    said = Markup('<p class="verdict {}">{}</p>').format("" if follows else "doubt", text[:1].upper() + text[1:])
    return said if text else ""


def _bar(stage: str, done: int | None, total: int | None, *details: str) -> Markup:
    share = Markup(' value="{}" max="{}"').format(done, total) if total else ""
    percent = f"{100 * (done or 0) // total} %" if total else ""
    return Markup(
        '<div class="stage"><strong aria-live="polite">{}</strong><span>{}</span></div>'
        '<progress aria-label="Progress"{}></progress><p class="details">{}</p>'
    ).format(stage, percent, share, " · ".join(filter(None, details)))


def result(job_id: str, name: str, *, has_page: bool) -> str:
    """Returns players of source and result, which `compare.js` synchronizes, and links; `name`: of the download."""
    page = Markup('<a class="button" id="report" href="v1/jobs/{}/report" target="_blank">Report</a>').format(job_id)
    return Markup(
        """<div id="compare"><div class="players" data-view="wipe">
<figure><video id="before" src="v1/jobs/{id}/before" muted playsinline preload="auto" tabindex="-1"></video>
<figcaption>Before</figcaption></figure>
<figure><video id="after" src="v1/jobs/{id}/result" playsinline preload="auto" tabindex="-1"></video>
<figcaption>After</figcaption></figure>
<input id="wipe" type="range" min="0" max="100" value="50" step="0.1" aria-label="Share of the picture before">
</div><p class="state" role="status">Loading…</p>
<div class="controls"><button type="button" class="play" aria-label="Play or pause">{play}</button>
<input class="seek" type="range" min="0" max="1" value="0" step="any" aria-label="Position"><output>0:00</output>
<button type="button" class="view" aria-pressed="false">Side by side</button></div></div>
<div class="links"><a class="button" id="download" href="v1/jobs/{id}/download" download>Download {name}</a>{page}</div>
"""
    ).format(id=job_id, play=_PLAY, name=name, page=page if has_page else "")


def _duration(seconds: float) -> str:
    """Returns 83.2 as "0:01:23"."""
    return str(timedelta(seconds=round(seconds)))


def theme() -> gr.themes.Base:
    made = gr.themes.Default(primary_hue="teal", neutral_hue="zinc", radius_size="lg", font=("system-ui", "sans-serif"))
    dark = {f"{name}_dark": color for name, (_, color) in _COLORS.items()}
    return made.set(block_label_border_width="0px", **{name: color for name, (color, _) in _COLORS.items()}, **dark)
