"""The page: its components, and what happens when they are used."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.job_store import OPEN
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.admission import PAGE, PREVIEW, NotNow, UnknownJob
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs, parts
from latentsync_trt.web.inputs import SOON, Inputs, Updates, Voices
from latentsync_trt.web.previews import Previews, original

_POLL_S = 1.0
_SWEEP_S = 60
_MOST_JOBS = 20
"""In a browser's history."""
_STORED = "latentsync-trt"
"""Key of the history in a browser's storage."""

Entries = list[str]
"""Ids of a browser's jobs, the newest first."""


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(
        self, service: Service, uploads: Path, cookie: str, previews: Previews, bundles: Mapping[str, str]
    ) -> None:
        """`uploads`, `cookie`: as for `Inputs`. `bundles`: folders by name, first the one that workers have open."""
        self._service, self._cookie, self._previews, self._bundles = service, cookie, previews, bundles
        self._canceling: set[str] = set()
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)) as self.blocks:
            self._lay_out_head(list(bundles))
            with gr.Row(elem_id="main"):
                with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                    self.inputs = Inputs(uploads, cookie, previews, service.limits)
                    preset = parts.preset_control()
                    self._lay_out_buttons()
                with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                    self.progress = gr.HTML(parts.EMPTY, elem_id="progress")
                    self.result = gr.HTML(elem_id="result", visible=False)
                    self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
            gr.Markdown("## Options", elem_id="options")
            with gr.Row(elem_classes="grid"):
                self.options = {parts.PRESET: preset, **parts.shown_controls()}
            with gr.Accordion("More options", open=False, elem_id="more"):
                self.options |= parts.folded_controls()
            self.entries = gr.BrowserState([], storage_key=_STORED, secret=_STORED)
            self.timer = gr.Timer(_POLL_S, active=False)
            self._connect()
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched itself.
        self.blocks.has_launched = True
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def _lay_out_head(self, names: list[str]) -> None:
        with gr.Row(elem_id="header"):
            gr.HTML(parts.HEADER)
            self.bundle = gr.Dropdown(
                names, value=names[0], label="Model", elem_id="bundle", filterable=False, interactive=len(names) > 1
            )
            self.model = gr.HTML(elem_id="model")
        note = parts.demo_note(other_face=False)
        self.demo_note = gr.HTML(note, elem_id="demo-note", visible=self._is_demo(names[0]))

    def _lay_out_buttons(self) -> None:
        with gr.Row(elem_id="buttons"):
            self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
            self.cancel = gr.Button("Cancel", size="lg", visible=False, elem_id="cancel")
        with gr.Column(visible=False, elem_id="ask") as self.ask:
            gr.HTML(parts.ASK)
            with gr.Row():
                self.instead = gr.Button("Use the built-in clip", elem_id="instead")
                self.anyway = gr.Button("Paint it anyway", elem_id="anyway")
        self.message = gr.HTML(parts.message(), elem_id="message")

    def _connect(self) -> None:
        inputs = self.inputs
        changed = inputs.connect(self.blocks, self.options, self.message)
        for event in (changed.then, self.bundle.change):
            event(self._warn, [inputs.video, self.bundle], [self.demo_note, self.ask], **SOON)
        self.instead.click(inputs.show_demo, None, [inputs.video, inputs.speech], **SOON)
        status = [self.progress, self.result, self.cancel, self.history, self.timer, self.model]
        look = [self.entries, self.history]
        given = [inputs.video, inputs.speech, inputs.each, inputs.voices, self.bundle, self.entries]
        for button in (self.start, self.anyway):
            sure, shown = gr.State(button is self.anyway), [*status, self.entries, self.message, self.ask]
            button.click(self._start, [sure, *given, *self.options.values()], shown, **SOON)
        for event in (self.timer.tick, self.history.input):
            event(self._look, look, status, **SOON)
        self.cancel.click(self._cancel, look, status, **SOON)
        self.blocks.load(self._look, self.entries, status, **SOON)

    def _is_demo(self, bundle: str) -> bool:
        return self._bundles[bundle] == str(demo_folder())

    def _smears(self, video: str | None, bundle: str) -> bool:
        """Whether the built-in model would paint another face than its own."""
        return video is not None and self._is_demo(bundle) and not self.inputs.is_demo(video)

    def _warn(self, video: str | None, bundle: str) -> Updates:
        """Says what the built-in model is for, where it is chosen."""
        text = parts.demo_note(other_face=self._smears(video, bundle))
        return {self.demo_note: gr.HTML(text, visible=self._is_demo(bundle)), self.ask: gr.Column(visible=False)}

    def _start(
        self, request: gr.Request, sure: bool, video: str | None, speech: str | None, each: bool, voices: Voices,
        bundle: str, entries: Entries, *values: Any,
    ) -> Updates:  # fmt: skip
        """Queues a job; asks unless `sure`, before the built-in model paints another face than its own."""
        source, hidden = None if video is None else original(Path(video)), {self.ask: gr.Column(visible=False)}
        people = self.inputs.people_of(video)
        try:
            if isinstance(people, str):  # the job would fail for the same reason
                raise InputError(people)
            chosen, files = parts.changed(dict(zip(self.options, values, strict=True)))
            recordings: dict[str, str | None] = {"audio": speech}
            if each:
                chosen.pop("face", None)
                recordings = {f"speaker_{number}": path for number, path in voices.items()}
            sent = {"video": None if source is None else str(source), **recordings, **files}
            jobs.check_sent(sent)
            if not sure and self._smears(video, bundle):
                return {self.ask: gr.Column(visible=True), self.message: parts.message()}
            folder = None if bundle == next(iter(self._bundles)) else self._bundles[bundle]
            browser = request.cookies.get(self._cookie, "")
            job = jobs.submit(self._service, sent, chosen, people, browser, folder)
        except LatentSyncError as error:
            return {self.message: parts.message(str(error)), **hidden}
        self.inputs.stop(request)
        entries = [job.id, *entries][:_MOST_JOBS]
        return {self.entries: entries, self.message: parts.message(), **hidden, **self._look(entries)}

    def _cancel(self, entries: Entries, shown: str) -> Updates:
        with suppress(UnknownJob, NotNow):  # it has just ended
            self._service.cancel(shown)
            self._canceling.add(shown)
        return self._look(entries, shown)

    def _look(self, entries: Entries, shown: str | None = None) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest."""
        service, known = self._service, {}
        for job_id in entries:
            with suppress(UnknownJob):  # it was deleted
                known[job_id] = service.job(job_id)
        self._canceling -= {one.id for one in known.values() if one.state not in OPEN}
        job = known.get(shown if shown in known else next(iter(known), ""))
        progress, result, problem, complete = str(parts.EMPTY), "", service.problem(), True
        canceling = job is not None and job.id in self._canceling
        if job is not None:
            has_preview = (service.folder(job.id) / PREVIEW).is_file()
            why = problem if job.state == "waiting" else ""
            progress = parts.progress(job, why, has_preview=has_preview, canceling=canceling)
            if job.state == "done":
                result, complete = self._result(job.id)
        labels = [(f"{one.files['video']} · {one.state}", one.id) for one in known.values()]
        # What a user chooses while this is on its way stays chosen.
        choice = {} if shown in known else {"value": job and job.id}
        changes = bool(problem) or not complete or any(one.state in OPEN for one in known.values())
        return {
            self.progress: progress,
            self.result: gr.HTML(result, visible=bool(result)),
            self.cancel: gr.Button(visible=job is not None and job.state in OPEN, interactive=not canceling),
            self.history: gr.Radio(labels, visible=bool(labels), **choice),
            self.timer: gr.Timer(active=changes),
            self.model: parts.model(service.providers(), problem),
        }

    def _result(self, job_id: str) -> tuple[str, bool]:
        """The result of a job, and whether its players can be shown."""
        path, name = jobs.download(self._service, job_id)
        playable = all(self._previews.of(each).done() for each in (jobs.source(self._service, job_id), path))
        has_page = (self._service.folder(job_id) / PAGE).is_file()
        return parts.result(job_id, name, has_page=has_page, has_players=playable), playable


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
