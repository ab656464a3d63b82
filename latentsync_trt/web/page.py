"""The page: its components, and what happens when they are used."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gradio as gr

from latentsync_trt.batch.ledger import OPEN
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.media.demo_clip import demo_clip
from latentsync_trt.serve.admission import PAGE, NotNow, UnknownJob
from latentsync_trt.serve.service import Service
from latentsync_trt.types import Progress
from latentsync_trt.web import jobs, parts
from latentsync_trt.web.jobs import People

_POLL_S, _API_POLL_S = 1.0, 0.3
_SWEEP_S = 60
_MOST_JOBS = 20
"""In a browser's history."""
_STORED = "latentsync-trt"
"""Key of the history in a browser's storage."""
_LARGEST = "largest"

Updates = dict[Any, Any]
Entries = list[tuple[str, str]]
"""A browser's jobs, the newest first: id and name of the video."""


class _Stopped(Exception):
    """Another video was chosen, or the job was started."""


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(self, service: Service, uploads: Path, cookie: str) -> None:
        """`uploads`: the folder from which Gradio serves files. `cookie`: the name of the one that marks a browser."""
        self._service, self._uploads, self._cookie = service, uploads, cookie
        self._searched: dict[str, str] = {}
        """By browser: the video whose people are looked for."""
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)) as self.blocks:
            self._lay_out()
            self._connect()
            _add_api(service, uploads, [self.video, self.speech, self.options[parts.PRESET], self.options["face"]])
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched itself.
        self.blocks.has_launched = True
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def close(self) -> None:
        """Ends searches for people."""
        self._searched.clear()

    def _lay_out(self) -> None:
        gr.HTML(parts.HEADER, elem_id="header")
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
                preset = parts.preset_control()
                with gr.Row(elem_id="buttons"):
                    self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
                    self.cancel = gr.Button("Cancel", size="lg", visible=False, elem_id="cancel")
                self.message = gr.HTML(parts.message(), elem_id="message")
            with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                self.progress = gr.HTML(parts.EMPTY, elem_id="progress")
                self.result = gr.HTML(elem_id="result", visible=False)
                self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
        gr.Markdown("## Options", elem_id="options")
        with gr.Row(elem_classes="grid"):
            self.options = {parts.PRESET: preset, **parts.shown_controls()}
        with gr.Accordion("More options", open=False, elem_id="more"):
            self.options |= parts.folded_controls()
        self.people = gr.State(None)
        self.entries = gr.BrowserState([], storage_key=_STORED, secret=_STORED)
        self.timer = gr.Timer(_POLL_S, active=False)

    def _connect(self) -> None:
        hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        many: dict[str, Any] = {**hidden, "concurrency_limit": None}
        soon: dict[str, Any] = {**hidden, "queue": False}
        face = self.options["face"]
        found = [self.people, self.people_note, self.faces, face, self.message]
        self.demo.click(self._show_demo, None, [self.video, self.speech], **hidden)
        chosen = self.video.change(self._forget, self.video, found, trigger_mode="multiple", **soon)
        shown: dict[str, Any] = {"show_progress_on": self.people_note, "api_visibility": "private"}
        chosen.then(self._find, self.video, found, trigger_mode="multiple", concurrency_limit=1, **shown)
        self.blocks.unload(self._leave)
        self.faces.select(_choose, None, face, **soon)
        status = [self.progress, self.result, self.cancel, self.history, self.timer]
        look = [self.entries, self.history]
        self.start.click(
            self._start,
            [self.video, self.speech, self.people, self.entries, *self.options.values()],
            [*status, self.entries, self.message],
            **many,
        )
        for event in (self.timer.tick, self.history.input):
            event(self._look, look, status, **soon)
        self.cancel.click(self._cancel, look, status, **soon)
        self.blocks.load(self._look, self.entries, status, **soon)

    def _show_demo(self) -> tuple[str, str]:
        """Returns the built-in clip and its speech, as uploads."""
        folder = mkdtemp(dir=self._uploads)
        video, speech = demo_clip(folder)
        return str(video), str(shutil.copy(speech, folder))

    def _forget(self, video: str | None, request: gr.Request) -> Updates:
        """Ends the search for the people of an earlier video, and forgets who was found."""
        self._searched[request.session_hash or ""] = video or ""
        return {
            self.people: None,
            self.people_note: gr.HTML("<p>Finding faces…</p>", visible=video is not None),
            self.faces: gr.Gallery([], visible=False),
            self.options["face"]: _LARGEST,
            self.message: parts.message(),
        }

    def _leave(self, request: gr.Request) -> None:
        self._searched.pop(request.session_hash or "", None)

    def _find(
        self,
        video: str | None,
        request: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 -- how Gradio passes it
    ) -> Updates:
        """Finds the people of a video that was chosen."""
        browser, hidden = request.session_hash or "", {self.people_note: gr.HTML(visible=False)}
        if video is None:
            return hidden

        def note(found: Progress) -> None:
            if self._searched.get(browser) != video:
                raise _Stopped
            progress((found.done, found.total), desc="Finding faces", unit="frames")

        try:
            note(Progress("finding faces", 0, None))
            found = jobs.find_people(video, self._service.limits, note)
        except _Stopped:  # another video's note stays
            return {self.people_note: gr.HTML(visible=browser in self._searched)}
        except LatentSyncError as error:
            return {**hidden, self.message: parts.message(str(error).replace(video, Path(video).name))}
        portraits = [(one, f"{number} · {seen_s:.1f} s") for number, (one, seen_s) in enumerate(found.portraits)]
        return {
            self.people: found,
            self.faces: gr.Gallery(portraits, visible=True, selected_index=None),
            self.people_note: gr.HTML(parts.found(len(portraits)), visible=True),
        }

    def _start(
        self,
        request: gr.Request,
        video: str | None,
        speech: str | None,
        people: People | None,
        entries: Entries,
        *values: Any,
    ) -> Updates:
        """Queues a job."""
        try:
            chosen, files = parts.changed(dict(zip(self.options, values, strict=True)))
            sent = {"video": video, "audio": speech, **files}
            job = jobs.submit(self._service, sent, chosen, people, request.cookies.get(self._cookie))
        except LatentSyncError as error:
            return {self.message: parts.message(str(error))}
        self._leave(request)
        entries = [(job.id, Path(video or "").name), *entries][:_MOST_JOBS]
        return {self.entries: entries, self.message: parts.message(), **self._look(entries)}

    def _cancel(self, entries: Entries, shown: str) -> Updates:
        with suppress(UnknownJob, NotNow):  # it has just ended
            self._service.cancel(shown)
        return self._look(entries, shown)

    def _look(self, entries: Entries, shown: str | None = None) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest."""
        service, names, known = self._service, dict(entries), {}
        for job_id in names:
            with suppress(UnknownJob):  # it was deleted
                known[job_id] = service.job(job_id)
        job = known.get(shown if shown in known else next(iter(known), ""))
        progress, result = str(parts.EMPTY), ""
        if job is not None:
            problem = service.problem() if job.state == "waiting" else ""
            progress = parts.progress(job, problem, has_preview=service.preview(job.id) is not None)
            if job.state == "done":
                result = parts.result(job.id, has_page=(service.folder(job.id) / PAGE).is_file())
        labels = [(f"{names[one.id]} · {one.state}", one.id) for one in known.values()]
        # What a user chooses while this is on its way stays chosen.
        choice = {} if shown in known else {"value": job and job.id}
        return {
            self.progress: progress,
            self.result: gr.HTML(result, visible=bool(result)),
            self.cancel: gr.Button(visible=job is not None and job.state in OPEN),
            self.history: gr.Radio(labels, visible=bool(labels), **choice),
            self.timer: gr.Timer(active=any(one.state in OPEN for one in known.values())),
        }


def _refuse_addresses(block: Any) -> None:
    """Refuses URLs as paths of files, which Gradio would download, of any size."""
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


def _add_api(service: Service, uploads: Path, inputs: list[Any]) -> None:
    """Adds the endpoint `/sync`, for `gradio_client`, to the page that is being made.

    `uploads`: the folder from which Gradio serves files. `inputs`: the page's video, speech, preset and face.
    """

    async def sync(
        video: str | None,
        speech: str | None,
        preset: str,
        face: str,
        options: Any,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 -- how Gradio passes it
    ) -> AsyncIterator[tuple[str | None, str | None]]:
        """Lip-syncs a video to speech; the report is a page, where options say `"report": true`."""
        try:
            if not isinstance(options, dict):
                raise InputError('options: is not an object; give one, as in {"guidance": 2.0}')
            sent, given = {"video": video, "audio": speech}, {"preset": preset, "face": face, **options}
            job = await asyncio.to_thread(jobs.submit, service, sent, given)
            try:
                while (job := service.job(job.id)).state in OPEN:
                    progress((job.done, job.total), desc=job.stage or job.state)
                    yield None, None
                    await asyncio.sleep(_API_POLL_S)
            finally:  # the client went away
                with suppress(UnknownJob, NotNow):  # it has ended
                    service.cancel(job.id)
            files = [service.result(job.id), *([service.page(job.id)] if given.get("report") else [])]
            (uploads / job.id).mkdir()
            copies = [str(jobs.copy(path, uploads / job.id / path.name)) for path in files]
            yield copies[0], copies[1] if len(copies) > 1 else None
        except LatentSyncError as error:
            raise gr.Error(str(error), print_exception=False) from error

    given, *found = gr.JSON({}, visible=False), gr.File(visible=False), gr.File(visible=False)
    gr.Button(visible=False).click(sync, [*inputs, given], found, api_name="sync", concurrency_limit=None)
