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
from latentsync_trt.serve.service import JobStatus, Service
from latentsync_trt.web import jobs, parts
from latentsync_trt.web.inputs import QUICK, Inputs, Updates
from latentsync_trt.web.jobs import COOKIE, Upload
from latentsync_trt.web.parts import html

_POLL_S = 1.0
_SWEEP_S = 60
_PREVIEW_S = 3
_ASK = "model: the built-in one does not know this face, and the mouth will be a smear; latentsync-trt setup gets one"
_SHOW_JOB = """() => document.querySelector("#cancel")
  && document.querySelector(innerWidth > 760 ? "#main" : "#outputs").scrollIntoView()"""
_SHOW_START = "() => document.querySelector('#start').focus()"
"""What is scrolled to after a click."""


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(self, service: Service, uploads: Path, bundles: Mapping[str, str]) -> None:
        """`uploads`: as for `Inputs`. `bundles`: folders by name, first the one that workers have open."""
        self._service, self._bundles = service, bundles
        self._canceling, names = set[str](), list(bundles)
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)) as self.blocks:
            with gr.Row(elem_id="header"):
                gr.HTML(html.header())
                self.bundle = gr.Dropdown(
                    names, value=names[0], label="Model", elem_id="bundle", filterable=False, interactive=len(names) > 1
                )
                self.model = gr.HTML(elem_id="model")
            self.demo_note = gr.HTML(visible=False, elem_id="demo-note")
            with gr.Row(elem_id="main"):
                with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                    self.inputs = Inputs(uploads, service.limits)
                    preset = parts.controls([parts.PRESET])
                    with gr.Row(elem_id="buttons"):
                        self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
                        self.trial = gr.Button(f"Preview {_PREVIEW_S} s", size="lg", min_width=120, elem_id="trial")
                        self.cancel = gr.Button("Cancel", size="lg", min_width=120, visible=False, elem_id="cancel")
                    self.message = gr.HTML(html.message(), elem_id="message")
                    self.anyway = gr.Button("Paint it anyway", size="sm", visible=False, elem_id="anyway")
                with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                    self.progress = gr.HTML(html.empty(), elem_id="progress")
                    self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
                    with gr.Row(visible=False, elem_id="job-buttons") as self.job_buttons:
                        self.again = gr.Button("Use these settings again", size="sm", elem_id="again")
                        self.delete = gr.Button("Delete", size="sm", min_width=90, elem_id="delete")
            gr.Markdown("## Options", elem_id="options")
            with gr.Row(elem_classes="grid"):
                shown = parts.controls(parts.SHOWN)
            with gr.Accordion("More options", open=False, elem_id="more"), gr.Row(elem_classes="grid"):
                options = {**preset, **shown, **parts.controls(parts.FOLDED)}
            self.given = {"video": self.inputs.video, "audio": self.inputs.speech, "bundle": self.bundle, **options}
            self.timer = gr.Timer(_POLL_S, active=False)
            self._connect()
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched itself.
        self.blocks.has_launched = True
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def _connect(self) -> None:
        inputs, face, given = self.inputs, self.given["face"], self.given.values()
        chosen, found = inputs.connect(self.given, self.message)
        for event in (chosen.then, found.then, self.bundle.change, face.change, self.blocks.load):
            event(self._warn, [inputs.upload, face, self.bundle], [self.demo_note, self.anyway], **QUICK)
        status = [self.progress, self.cancel, self.history, self.job_buttons, self.timer, self.model]
        for button in (self.start, self.trial, self.anyway):
            name, shown = gr.State(button.elem_id), [*status, self.message, self.anyway]
            button.click(self._start, [name, inputs.upload, *given], shown, **QUICK).then(js=_SHOW_JOB)
        for event in (self.timer.tick, self.history.input):
            event(self._look, self.history, status, **QUICK)
        self.cancel.click(self._cancel, self.history, status, **QUICK)
        self.delete.click(self._delete, self.history, status, **QUICK)
        filled = [inputs.upload, self.message, *given]
        self.again.click(self._fill, [self.history, inputs.upload], filled, **QUICK).then(js=_SHOW_START)
        self.blocks.load(self._look, None, status, **QUICK)

    def _smears(self, upload: Upload | None, face: str, bundle: str) -> bool:
        """Whether the built-in model would paint another face than its own, as far as the faces are known."""
        if upload is None or not upload.built_in or self._bundles[bundle] != str(demo_folder()):
            return False
        known = {f"index:{number}": knows for number, knows in enumerate(upload.built_in)}
        return not known.get(face, any(known.values()))

    def _warn(self, upload: Upload | None, face: str, bundle: str) -> Updates:
        """Says what the built-in model is for, where it is chosen."""
        is_demo = self._bundles[bundle] == str(demo_folder())
        note = gr.HTML(html.demo_note(other_face=self._smears(upload, face, bundle)), visible=is_demo)
        return {self.demo_note: note, self.anyway: gr.Button(visible=False)}

    def _start(self, request: gr.Request, button: str, upload: Upload | None, *values: Any) -> Updates:
        """Queues a job; at the button "start", asks before the built-in model paints another face than its own."""
        given = dict(zip(self.given, values, strict=True))
        bundle, quiet = given["bundle"], {self.message: html.message(), self.anyway: gr.Button(visible=False)}
        options, files = parts.changed(given)
        try:
            if upload is None or given["audio"] is None:
                raise InputError(f"{'speech' if upload else 'video'}: is missing; choose or record one")
            if button == "start" and self._smears(upload, given["face"], bundle):
                return quiet | {self.message: html.message(_ASK), self.anyway: gr.Button(visible=True)}
            if button == "trial":
                options["preview_s"] = _PREVIEW_S
            given["video"] = str(upload.video)
            files = {"video": given["video"], "audio": given["audio"], **files}
            folder = None if bundle == next(iter(self._bundles)) else self._bundles[bundle]
            settings = {"options": options, "bundle": folder, "values": given, "files": files}
            jobs.submit(self._service, settings, upload, request.cookies.get(COOKIE, ""))
        except LatentSyncError as error:
            return quiet | {self.message: html.message(str(error))}
        return quiet | self._look(request)

    def _owns(self, request: gr.Request, job_id: str | None) -> bool:
        return job_id in jobs.of_browser(self._service, request.cookies.get(COOKIE))

    def _cancel(self, request: gr.Request, shown: str) -> Updates:
        if self._owns(request, shown):
            with suppress(UnknownJob, NotNow):  # it has just ended
                self._service.cancel(shown)
                self._canceling.add(shown)
        return self._look(request, shown)

    def _delete(self, request: gr.Request, shown: str) -> Updates:
        if self._owns(request, shown):
            with suppress(UnknownJob):
                self._service.delete(shown)
        return self._look(request)

    def _fill(self, request: gr.Request, shown: str, upload: Upload | None) -> Updates:
        """Puts files and settings of a job into the form."""
        settings = jobs.settings_of(self._service, shown) if self._owns(request, shown) else {}
        if not settings:
            return {self.message: html.message("job: was deleted; choose another one")}
        values = settings["values"]
        gone = [name for name, path in settings["files"].items() if not Path(path).is_file()]
        gone += [] if values["bundle"] in self._bundles else ["bundle"]
        missing = f"{', '.join(gone)}: not kept any longer; choose again" if gone else ""
        updates = {control: values[name] for name, control in self.given.items() if name not in gone}
        if upload is not None and str(upload.video) == values["video"]:
            updates.pop(self.inputs.video, None)  # a copy of it may be shown
        elif "video" not in gone:
            updates[self.inputs.upload] = Upload(Path(values["video"]))
        return updates | {self.message: html.message(missing)}

    def _look(self, request: gr.Request, shown: str | None = None) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest."""
        known = jobs.of_browser(self._service, request.cookies.get(COOKIE))
        self._canceling -= {one.id for one in known.values() if one.state not in OPEN}
        job = known.get(shown if shown in known else next(iter(known), ""))
        problem, providers = self._service.problem(), " and ".join(self._service.providers()).replace("cpu", "CPU")
        labels = [(parts.job_label(one, jobs.settings_of(self._service, one.id)), one.id) for one in known.values()]
        # What a user chooses while this is on its way stays chosen.
        choice = {} if shown in known else {"value": job and job.id}
        is_open = job is not None and job.state in OPEN
        changes = bool(problem) or any(one.state in OPEN for one in known.values())
        return {
            self.progress: str(html.empty()) if job is None else self._card(job, problem),
            self.cancel: gr.Button(visible=is_open, interactive=job is None or job.id not in self._canceling),
            self.history: gr.Radio(labels, visible=bool(labels), **choice),
            self.job_buttons: gr.Row(visible=job is not None),
            self.timer: gr.Timer(active=changes),
            self.model: html.note(problem or (f"runs on {providers}" if providers else "ready")),
        }

    def _card(self, job: JobStatus, problem: str) -> str:
        """State and result of a job."""
        has_preview, has_page = ((self._service.folder(job.id) / name).is_file() for name in (PREVIEW, PAGE))
        card = html.card(job, problem, parts.verdict(job), has_preview, job.id in self._canceling)
        if job.state == "done":
            card += html.result(f"v1/jobs/{job.id}", self._service.result(job.id)[1], has_page)
        return str(card)


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
