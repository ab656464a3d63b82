"""Parts of the page as HTML. Values are escaped."""

from collections.abc import Sequence
from datetime import timedelta

from markupsafe import Markup

from latentsync_trt.serve.service import JobStatus

_PLAY = Markup('<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M7 4.5v15l12.5-7.5z"/></svg>')

HEADER = "<header><h1>latentsync-trt</h1><p>Give a video new speech: the lips follow it.</p></header>"
EMPTY = Markup('<div class="empty">{}<p>Your result appears here.</p></div>').format(_PLAY)


def message(text: str = "") -> Markup:
    """An error, or nothing."""
    return Markup('<p role="alert">{}</p>').format(text)


def found(people: int) -> str:
    """What to do with the people that were found."""
    some = f"{people} people were found. Click on one; otherwise the largest face is used."
    return Markup("<p>{}</p>").format("One person was found." if people == 1 else some)


def progress(job: JobStatus, problem: str, *, has_preview: bool) -> str:
    """What happens to a job. `problem`: why no job can run, if none can."""
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
        return _progress("Done", 1, 1, counted, rate, took) + _notices(job.report.get("notices", ()))
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
    return Markup('<details class="notices"><summary>{}</summary><ul>{}</ul></details>').format(title, items)


def result(job_id: str, *, has_page: bool) -> str:
    """Players of source and result, which `compare.js` lets play together, and links."""
    page = Markup('<div id="report"><a class="button" href="{at}/report" target="_blank">Report</a></div>')
    return Markup(
        """<div id="compare"><div class="players" data-view="wipe">
<figure><video id="before" src="{at}/source" muted playsinline preload="auto" tabindex="-1"></video>
<figcaption>Before</figcaption></figure>
<figure><video id="after" src="{at}/result" playsinline preload="auto" tabindex="-1"></video>
<figcaption>After</figcaption></figure>
<input id="wipe" type="range" min="0" max="100" value="50" step="0.1" aria-label="Share of the picture before">
</div><p class="unplayable" role="status" hidden>This browser cannot play this kind of video; download the result.</p>
<div class="controls"><button type="button" class="play" aria-label="Play or pause">{play}</button>
<input class="seek" type="range" min="0" max="1" value="0" step="any" aria-label="Position"><output>0:00</output>
<button type="button" class="view" aria-pressed="false">Side by side</button></div></div>
<div class="links"><div id="download"><a class="button" href="{at}/result" download>Download</a></div>{page}</div>"""
    ).format(at=_address(job_id), play=_PLAY, page=page.format(at=_address(job_id)) if has_page else "")


def _address(job_id: str) -> str:
    return f"v1/jobs/{job_id}"


def _duration(seconds: float) -> str:
    """83.2 → "0:01:23"."""
    return str(timedelta(seconds=round(seconds)))
