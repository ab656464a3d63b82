"""The page: its components, and what happens when they are used."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.demo_clip import demo_clip
from latentsync_trt.serve.admission import PAGE
from latentsync_trt.serve.limits import NotNow, UnknownJob
from latentsync_trt.serve.service import Service
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
        self._service, self._uploads, self._cookie = service, uploads, cookie
        self.searches = Searches(service.limits)
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

    def _lay_out(self) -> None:
        gr.HTML(show.HEADER, elem_id="header")
        with gr.Row(elem_id="main"):
            with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                self.video = gr.Video(label="Video", sources=["upload", "webcam"], elem_id="video", interactive=True)
                self.speech = gr.Audio(
                    label="Speech", sources=["upload", "microphone"], type="filepath", buttons=[], elem_id="speech"
                )
                self.demo = gr.Button("No files at hand? Try the built-in clip", size="sm", elem_id="demo")
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
                self.result = gr.HTML(elem_id="result", visible=False)
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
        soon: dict[str, Any] = {**hidden, "queue": False}
        face = self.options["face"]
        found = [self.people, self.people_note, self.faces, face, self.message]
        self.demo.click(self._show_demo, None, [self.video, self.speech], **hidden)
        self.video.change(self._find, self.video, found, trigger_mode="multiple", **many)
        self.faces.select(_choose, None, face, **soon)
        status = [
            *(self.progress, self.result, self.cancel, self.history, self.message),
            *(self.timer, self.seen, self.current),
        ]
        look = [self.entries, self.current, self.seen]
        self.start.click(
            self._start,
            [self.video, self.speech, self.people, self.entries, *self.options.values()],
            [*status, self.entries, self.start, self.people_note],
            **many,
        )
        self.timer.tick(self._look, look, status, **soon)
        self.cancel.click(self._cancel, look, status, **soon)
        self.history.input(self._open, [self.entries, self.history], status, **soon)
        self.blocks.load(self._open, self.entries, status, **soon)

    def _show_demo(self) -> tuple[str, str]:
        """The built-in clip and its speech, as uploads."""
        folder = self._uploads / "demo"
        folder.mkdir(exist_ok=True)
        video, speech = demo_clip(folder)
        return str(video), str(jobs.copy(speech, folder / speech.name))

    def _find(self, video: str | None, request: gr.Request) -> Iterator[Updates]:
        """Finds the people of a video that was chosen."""
        browser, none = request.session_hash or "", gr.HTML(visible=False)
        yield {
            **{self.people: None, self.people_note: none, self.message: show.message()},
            **{self.faces: gr.Gallery([], visible=False), self.options["face"]: _LARGEST},
        }
        if video is None:
            self.searches.stop(browser)
            return
        try:
            for found in self.searches.find(browser, video):
                if isinstance(found, People):
                    labels = (f"{number} · {seen_s:.1f} s" for number, (_, seen_s) in enumerate(found.portraits))
                    portraits = [(one, label) for (one, _), label in zip(found.portraits, labels, strict=True)]
                    yield {
                        self.people: found,
                        self.faces: gr.Gallery(portraits, visible=True, selected_index=None),
                        self.people_note: gr.HTML(show.found(len(portraits)), visible=True),
                    }
                else:
                    yield {self.people_note: gr.HTML(show.searching(found), visible=True)}
        except Exception as error:  # noqa: BLE001 -- the page shows it
            yield {self.people_note: none, self.message: _sentence(error, video)}

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
        self.searches.stop(request.session_hash or "")
        yield {self.start: gr.Button(interactive=False), self.message: show.message()}
        done = {self.start: gr.Button(interactive=True)}
        try:
            chosen, files = options.changed(dict(zip(self.options, values, strict=True)))
            sent = {"video": video, "audio": speech, **files}
            job = jobs.submit(self._service, sent, chosen, people, request.cookies.get(self._cookie))
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
        service, known, names = self._service, {}, dict(entries)
        for job_id in names:
            with suppress(UnknownJob):  # it was deleted
                known[job_id] = service.job(job_id)
        job = known.get(current or "")
        labels = [(f"{names[one.id]} · {one.state}", one.id) for one in known.values()]
        now = [labels, current]
        is_open, updates = job is not None and job.state in _OPEN, {}
        if now != seen:
            updates = {
                self.seen: now,
                self.current: current,
                self.timer: gr.Timer(active=any(one.state in _OPEN for one in known.values())),
                self.history: gr.Radio(labels, value=job and job.id, visible=bool(labels)),
                self.cancel: gr.Button(visible=is_open),
                self.message: show.message((job and job.error) or ""),
                self.progress: show.EMPTY,
                self.result: gr.HTML(visible=False),
            }
        if job is not None and (is_open or updates):
            problem = service.problem() if job.state == "waiting" else ""
            updates[self.progress] = show.progress(job, problem, has_preview=service.preview(job.id) is not None)
        if job is not None and job.state == "done" and updates:
            html = show.result(job.id, has_page=(service.folder(job.id) / PAGE).is_file())
            updates[self.result] = gr.HTML(html, visible=True)
        return updates


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
