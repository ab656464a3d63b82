"""The page: its components, and what happens when they are used."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.serve.limits import NotNow, UnknownJob
from latentsync_trt.serve.service import Job, Service
from latentsync_trt.web import jobs, options, show
from latentsync_trt.web.api import add_api
from latentsync_trt.web.people import People, Searches

_POLL_S = 1.0
_SWEEP_S = 60
_MOST_JOBS = 20
"""In a browser's history."""
_STORED = "latentsync-trt"
"""Key of the history in a browser's storage."""
_OPEN = "waiting", "running"
_LARGEST = "largest"

_log = logging.getLogger(__name__)

Updates = dict[Any, Any]
Entries = list[tuple[str, str]]
"""A browser's jobs, the newest first: id and name of the video."""


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(self, service: Service, uploads: Path, cookie: str) -> None:
        """`uploads`: the folder from which Gradio serves files. `cookie`: the name of the one that marks a browser."""
        self._service, self._searches, self._cookie = service, Searches(service.limits), cookie
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)) as self.blocks:
            self._lay_out()
            self._connect()
            add_api(service, uploads)
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched itself.
        self.blocks.has_launched = True
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def close(self) -> None:
        """Ends searches for faces."""
        self._searches.close()

    def _lay_out(self) -> None:
        gr.HTML(show.HEADER, elem_id="header")
        with gr.Row(elem_id="main"):
            with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                self.video = gr.Video(label="Video", sources=["upload", "webcam"], elem_id="video", interactive=True)
                self.speech = gr.Audio(
                    label="Speech", sources=["upload", "microphone"], type="filepath", buttons=[], elem_id="speech"
                )
                self.people_note = gr.HTML(visible=False, elem_id="people-note")
                self.faces = gr.Gallery(
                    label="People", show_label=False, columns=8, height="auto", object_fit="cover", allow_preview=False,
                    buttons=[], interactive=False, visible=False, elem_id="faces",
                )  # fmt: skip
                preset = options.preset_control(elem_id=options.PRESET)
                with gr.Row(elem_id="buttons"):
                    self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
                    self.cancel = gr.Button("Cancel", size="lg", visible=False, elem_id="cancel")
                self.message = gr.HTML(show.message(), elem_id="message")
            with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                self.progress = gr.HTML(show.EMPTY, elem_id="progress")
                self.preview = gr.HTML(elem_id="preview", visible=False)
                self.compare = gr.HTML(elem_id="compare", visible=False)
                with gr.Row(elem_id="links"):
                    self.download = gr.HTML(elem_id="download", visible=False)
                    self.report = gr.HTML(elem_id="report", visible=False)
                self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
        gr.Markdown("## Options", elem_id="options")
        with gr.Row(elem_classes="grid"):
            self.options = {options.PRESET: preset, **options.shown_controls()}
        with gr.Accordion("More options", open=False, elem_id="more"):
            self.options |= options.folded_controls()
        self.people = gr.State(None)
        self.entries = gr.BrowserState([], storage_key=_STORED, secret=_STORED)
        self.current, self.seen = gr.State(None), gr.State(None)
        self.timer = gr.Timer(_POLL_S, active=False)

    def _connect(self) -> None:
        hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        many: dict[str, Any] = {**hidden, "concurrency_limit": None}
        face = self.options["face"]
        found = [self.people, self.people_note, self.faces, face, self.message]
        self.video.change(self._find, self.video, found, trigger_mode="multiple", **many)
        self.faces.select(_choose, None, face, queue=False, **hidden)
        status = [
            *(self.progress, self.preview, self.compare, self.download, self.report, self.cancel),
            *(self.history, self.message, self.timer, self.seen, self.current),
        ]
        look = [self.entries, self.current, self.seen]
        self.start.click(
            self._start,
            [self.video, self.speech, self.people, self.entries, *self.options.values()],
            [*status, self.entries, self.start],
            **many,
        )
        self.timer.tick(self._look, look, status, queue=False, **hidden)
        self.cancel.click(self._cancel, look, status, queue=False, **hidden)
        self.history.input(self._open, [self.entries, self.history], status, queue=False, **hidden)
        self.blocks.load(self._open, [self.entries], status, queue=False, **hidden)

    def _find(self, video: str | None, request: gr.Request) -> Iterator[Updates]:
        """Finds the people of a video that was chosen."""
        browser = request.session_hash or ""
        face = self.options["face"]
        gone = {self.people: None, self.faces: gr.Gallery([], visible=False), face: _LARGEST}
        if video is None:
            self._searches.stop(browser)
            yield {**gone, self.people_note: gr.HTML(visible=False)}
            return
        yield {**gone, self.message: show.message()}
        try:
            for found in self._searches.find(browser, video):
                if isinstance(found, People):
                    portraits = [
                        (one, f"{number} · {seen_s:.1f} s") for number, (one, seen_s) in enumerate(found.portraits)
                    ]
                    note = show.found(len(portraits))
                    yield {
                        self.people: found,
                        self.faces: gr.Gallery(portraits, visible=True, selected_index=None),
                        self.people_note: gr.HTML(note, visible=True),
                    }
                else:
                    yield {self.people_note: gr.HTML(show.searching(found), visible=True)}
        except Exception as error:  # noqa: BLE001 -- the page shows it
            yield {self.people_note: gr.HTML(visible=False), self.message: _sentence(error, video)}

    def _start(
        self,
        request: gr.Request,
        video: str | None,
        speech: str | None,
        people: People | None,
        entries: Entries,
        *values: Any,
    ) -> Iterator[Updates]:
        """Queues a job."""
        self._searches.stop(request.session_hash or "")
        yield {self.start: gr.Button(interactive=False), self.message: show.message()}
        done = {self.start: gr.Button(interactive=True)}
        try:
            chosen, files = options.changed(dict(zip(self.options, values, strict=True)))
            browser = request.cookies.get(self._cookie)
            job = jobs.submit(self._service, video, speech, chosen, files, people, browser)
        except Exception as error:  # noqa: BLE001 -- the page shows it
            yield {**done, self.message: _sentence(error, video, speech)}
            return
        entries = [(job.id, Path(video or "").name), *entries][:_MOST_JOBS]
        yield {**done, self.entries: entries, **self._look(entries, job.id, None)}

    def _cancel(self, entries: Entries, current: str, seen: Any) -> Updates:
        with suppress(UnknownJob, NotNow):  # it has just ended
            self._service.cancel(current)
        return self._look(entries, current, seen)

    def _open(self, entries: Entries, chosen: str | None = None) -> Updates:
        """Shows a job of the history, by default the newest."""
        return self._look(entries, chosen or (entries[0][0] if entries else None), None)

    def _look(self, entries: Entries, current: str | None, seen: Any) -> Updates:
        """What is known of the browser's jobs; `seen`: what the page shows already."""
        known = [(job, name) for job_id, name in entries if (job := self._job(job_id)) is not None]
        labels = [(f"{name} · {job.state}", job.id) for job, name in known]
        job = next((job for job, _ in known if job.id == current), None)
        if job is None:
            progress, preview = str(show.EMPTY), ""
        else:
            waits = job.state == "waiting"
            progress = show.progress(job, self._service.problem() if waits else "")
            preview = show.preview(job, exists=self._service.preview(job.id) is not None)
        updates: Updates = {self.progress: progress, self.preview: gr.HTML(preview, visible=bool(preview))}
        now = [labels, current, job and job.state]
        if now == seen:
            return updates
        updates |= {
            self.seen: now,
            self.current: current,
            self.timer: gr.Timer(active=any(each.state in _OPEN for each, _ in known)),
            self.history: gr.Radio(labels, value=job and job.id, visible=bool(labels)),
            self.cancel: gr.Button(visible=job is not None and job.state in _OPEN),
            self.message: show.message(job.error or "" if job is not None else ""),
        }
        done = job if job is not None and job.state == "done" else None
        for part, html in ((self.compare, show.compare), (self.download, show.download)):
            updates[part] = gr.HTML(html(done.id) if done else "", visible=done is not None)
        paged = done is not None and self._has_page(done.id)
        updates[self.report] = gr.HTML(show.report(done.id) if done and paged else "", visible=paged)
        return updates

    def _has_page(self, job_id: str) -> bool:
        try:
            self._service.page(job_id)
        except (UnknownJob, NotNow):
            return False
        return True

    def _job(self, job_id: str) -> Job | None:
        try:
            return self._service.job(job_id)
        except UnknownJob:
            return None


def _refuse_addresses(block: Any) -> None:
    """Gradio would download a file whose path is an address, of any size."""
    move = block.async_move_resource_to_block_cache

    async def checked(path: str | Path | None) -> str | None:
        if path is not None and "://" in str(path):
            raise gr.Error("file: is an address; send the file itself", print_exception=False)
        found: str | None = await move(path)
        return found

    # Not in a subclass: Gradio writes a stub beside the module of one.
    block.async_move_resource_to_block_cache = checked


def _choose(chosen: gr.SelectData) -> str:
    return f"index:{chosen.index}"


def _sentence(error: Exception, *uploaded: str | None) -> str:
    """An error for people; names of `uploaded` files without their folders."""
    if not isinstance(error, LatentSyncError):
        _log.error("request failed", exc_info=error)
        return show.message("page: internal error; the log of the command says more")
    text = str(error)
    for path in filter(None, uploaded):
        text = text.replace(path, Path(path).name)
    return show.message(text)
