"""Parts of the page as HTML. Values are escaped."""

from collections.abc import Sequence

from markupsafe import Markup

from latentsync_trt.serve.service import Job
from latentsync_trt.types import Progress

_ICON = Markup('<svg viewBox="0 0 24 24" aria-hidden="true"><path d="{}"/></svg>')
_PLAY = _ICON.format("M7 4.5v15l12.5-7.5z")

HEADER = Markup("<header><h1>latentsync-trt</h1><p>Give a video new speech: the lips follow it.</p></header>")
EMPTY = Markup('<div class="empty">{}<p>Your result appears here.</p></div>').format(_PLAY)


def message(text: str = "") -> str:
    """An error, or nothing."""
    return Markup('<p role="alert">{}</p>').format(text)


def searching(found: Progress) -> str:
    """How far the search for faces is."""
    share = f" {100 * found.done // found.total} %" if found.total else ""
    return Markup("<p>{}…{}</p>").format(found.stage.capitalize(), share)


def found(people: int) -> str:
    """What to do with the people that were found."""
    text = (
        "One person was found."
        if people == 1
        else f"{people} people were found. Click on one, else the largest face is used."
    )
    return Markup("<p>{}</p>").format(text)


def clock(seconds: float) -> str:
    """A duration: 83.2 → "1:23"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def progress(job: Job, problem: str = "") -> str:
    """What happens to a job. `problem`: why no job can run, if none can."""
    if job.state == "waiting":
        first = problem or ("next in the queue" if job.position == 1 else f"number {job.position} in the queue")
        return _progress("Waiting", None, None, first)
    if job.state == "running":
        counted = f"{job.done} of {job.total} frames" if job.total else f"{job.done} frames" if job.done else ""
        rate = f"{job.frames_per_s:.1f} frames/s" if job.frames_per_s else ""
        left = f"{clock(job.seconds_left)} left" if job.seconds_left is not None else ""
        return _progress((job.stage or "starting").capitalize(), job.done, job.total, counted, rate, left)
    if job.state == "done" and job.report is not None:
        report = job.report
        took = f"took {clock(report['wall_s'])}"
        figures = f"{report['frames']} frames", f"{report['frames_per_s']:.1f} frames/s", took
        return _progress("Done", 1, 1, *figures) + _notices(report.get("notices", ()))
    return _progress(job.state.capitalize(), 0, 1)


def _progress(stage: str, done: int | None, total: int | None, *details: str) -> Markup:
    share = Markup("") if not total else Markup(' value="{}" max="{}"').format(done, total)
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
    return Markup('<details class="notices"><summary>{}</summary><ul>{}</ul></details>').format(title, items)


def preview(job: Job, exists: bool) -> str:
    """The newest frame of a running job."""
    if job.state != "running" or not exists:
        return ""
    address = f"{_address(job.id)}/preview?frame={job.done}"
    return Markup('<img src="{}" alt="Newest frame">').format(address)


def compare(job_id: str) -> str:
    """Players of source and result; `compare.js` lets them play together."""
    return Markup(
        """<div class="players" data-view="wipe">
<figure><video id="before" src="{at}/source" muted playsinline preload="auto" tabindex="-1"></video>
<figcaption>Before</figcaption></figure>
<figure><video id="after" src="{at}/result" playsinline preload="auto" tabindex="-1"></video>
<figcaption>After</figcaption></figure>
<input id="wipe" type="range" min="0" max="100" value="50" step="0.1" aria-label="Share of the picture before">
</div><p class="unplayable" role="status" hidden>This browser cannot play this kind of video; download the result.</p>
<div class="controls"><button type="button" class="play" aria-label="Play or pause">{play}</button>
<input class="seek" type="range" min="0" max="1" value="0" step="any" aria-label="Position"><output>0:00</output>
<button type="button" class="view" aria-pressed="false">Side by side</button></div>"""
    ).format(at=_address(job_id), play=_PLAY)


def download(job_id: str) -> str:
    """A link that saves the result."""
    return Markup('<a class="button" href="{}/result" download>Download</a>').format(_address(job_id))


def report(job_id: str) -> str:
    """A link to the page of the report."""
    return Markup('<a class="button quiet" href="{}/report" target="_blank">Report</a>').format(_address(job_id))


def _address(job_id: str) -> str:
    return f"v1/jobs/{job_id}"
