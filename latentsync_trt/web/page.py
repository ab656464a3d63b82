"""The page: its components, and what happens when they are used."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.job_store import OPEN
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.admission import PAGE, PREVIEW, NotNow, UnknownJob
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs, parts
from latentsync_trt.web.inputs import QUICK, Inputs, Updates, answered
from latentsync_trt.web.jobs import COOKIE, Upload, copy_of, source_of
from latentsync_trt.web.parts import html

_POLL_S = 1.0
_SWEEP_S = 60
_PREVIEW_S = 3
_ASK = (
    "model: the built-in one does not know this face, and "
    "the mouth will be a smear; latentsync-trt setup gets one"
)
_SHOW_JOB = """() => document.querySelector("#cancel")
  && document.querySelector(innerWidth > 760 ? "#main" : "#outputs").scrollIntoView()"""
_SHOW_START = "() => document.querySelector('#start').focus()"
"""What is scrolled to after a click."""
_BARS = [html.bar("Starting", 0, None, []), html.bar("Waits for the files", 0, None, [])]
_BEGIN = f"() => {json.dumps(_BARS)}[Number(page.loads())]"
"""What is shown from the click on until a job is submitted."""
_DELETE = """(job) => [confirm("Delete this job, with its files?") ? job : null]"""


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(self, service: Service, uploads: Path, bundles: Mapping[str, str]) -> None:
        """`uploads`: as for `Inputs`. `bundles`: folders by name, first the one that workers have
        open.
        """
        self._service = service
        self._bundles = bundles
        self._canceling = set[str]()
        names = list(bundles)
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(
            title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)
        ) as self.blocks:
            with gr.Row(elem_id="header"):
                gr.HTML(html.header())
                self.bundle = gr.Dropdown(
                    names,
                    value=names[0],
                    label="Model",
                    elem_id="bundle",
                    filterable=False,
                    interactive=len(names) > 1,
                )
                self.model = gr.HTML(elem_id="model")
            self.demo_note = gr.HTML(visible=False, elem_id="demo-note")
            with gr.Row(elem_id="main"):
                with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                    self.inputs = Inputs(uploads, service.limits)
                    preset = parts.controls([parts.PRESET])
                    with gr.Row(elem_id="buttons"):
                        self.start = gr.Button(
                            "Lip-sync", variant="primary", size="lg", elem_id="start"
                        )
                        self.trial = gr.Button(
                            f"Preview {_PREVIEW_S} s", size="lg", min_width=120, elem_id="trial"
                        )
                        self.cancel = gr.Button(
                            "Cancel", size="lg", min_width=120, visible=False, elem_id="cancel"
                        )
                    self.message = gr.HTML(html.message(), elem_id="message")
                    self.anyway = gr.Button(
                        "Paint it anyway", size="sm", visible=False, elem_id="anyway"
                    )
                with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                    self.progress = gr.HTML(html.empty(), elem_id="progress")
                    self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
                    with gr.Row(visible=False, elem_id="job-buttons") as self.job_buttons:
                        self.again = gr.Button(
                            "Use these settings again", size="sm", elem_id="again"
                        )
                        self.delete = gr.Button("Delete", size="sm", min_width=90, elem_id="delete")
            gr.Markdown("## Options", elem_id="options")
            with gr.Row(elem_classes="grid"):
                shown = parts.controls(parts.SHOWN)
            with (
                gr.Accordion("More options", open=False, elem_id="more"),
                gr.Row(elem_classes="grid"),
            ):
                options = {**preset, **shown, **parts.controls(parts.FOLDED)}
            self.given = {
                "video": self.inputs.video,
                "audio": self.inputs.speech,
                "bundle": self.bundle,
                **options,
            }
            self.files = {"video", "audio", *parts.FILES}
            self.timer = gr.Timer(_POLL_S, active=False)
            self.kept = gr.Textbox(visible=False, elem_id="kept")
            self._connect()
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched
        # itself.
        self.blocks.has_launched = True
        _refuse_forged(self.blocks)
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def _connect(self) -> None:
        inputs = self.inputs
        face = self.given["face"]
        form = list(self.given.values())
        chosen, searched = inputs.connect(self.given)
        for event in (
            chosen.then,
            searched.then,
            self.bundle.change,
            face.change,
            self.blocks.load,
        ):
            event(
                self._warn,
                [inputs.upload, face, self.bundle],
                [self.demo_note, self.anyway],
                **QUICK,
            )
        status = [
            self.progress,
            self.cancel,
            self.history,
            self.job_buttons,
            self.timer,
            self.model,
        ]
        for button in (self.start, self.trial, self.anyway):
            started = [*status, self.message, self.anyway]
            name = gr.State(button.elem_id)
            begun = button.click(None, None, self.progress, js=_BEGIN, **QUICK).then(
                js="() => page.loaded()"
            )
            begun = begun.then(
                self._start, [name, self.history, inputs.upload, *form], started, **QUICK
            )
            answered(begun.then(js=_SHOW_JOB))
        for event in (self.timer.tick, self.history.input):
            event(self._look, self.history, status, **QUICK)
        answered(self.cancel.click(self._cancel, self.history, status, **QUICK))
        answered(self.delete.click(self._delete, self.history, status, js=_DELETE, **QUICK))
        filled = [inputs.upload, self.message, *form]
        answered(
            self.again.click(self._use_again, self.history, filled, **QUICK).then(js=_SHOW_START)
        )
        self.blocks.load(self._look, None, status, **QUICK)
        restored = self.blocks.load(
            self._restore, self.kept, filled, js="() => [page.kept()]", **QUICK
        )
        restored.then(js="() => page.restores()")
        gr.on(
            [each.change for each in form],
            None,
            form,
            None,
            js="(...form) => page.keep(form)",
            **QUICK,
        )

    def _is_demo(self, bundle: str | None) -> bool:
        return bundle is not None and self._bundles[bundle] == str(demo_folder())

    def _smears(self, upload: Upload | None, face: str, bundle: str | None) -> bool:
        """Whether the built-in model would paint another face than its own, as far as the faces are
        known.
        """
        if upload is None or not upload.built_in or not self._is_demo(bundle):
            return False
        known = {f"index:{number}": knows for number, knows in enumerate(upload.built_in)}
        return not known.get(face, any(known.values()))

    def _warn(self, upload: Upload | None, face: str, bundle: str | None) -> Updates:
        """Says what the built-in model is for, where it is chosen."""
        smears = self._smears(upload, face, bundle)
        note = gr.HTML(html.demo_note(other_face=smears), visible=self._is_demo(bundle))
        return {self.demo_note: note, self.anyway: gr.Button(visible=False)}

    def _start(
        self, request: gr.Request, button: str, shown: str | None, upload: Upload | None, *form: Any
    ) -> Updates:
        """Queues a job; at the button "start", asks before the built-in model paints another face
        than its own.
        """
        values = dict(zip(self.given, form, strict=True))
        quiet = {self.message: html.message(), self.anyway: gr.Button(visible=False)}
        try:
            if upload is None and values["video"] and self.inputs.has(values["video"]):
                # the search for its people has not begun
                upload = Upload(source_of(Path(values["video"])))
            if upload is None or values["audio"] is None:
                raise InputError(
                    f"{'speech' if upload else 'video'}: is missing; choose or record one"
                )
            if button == "start" and self._smears(upload, values["face"], values["bundle"]):
                asked = {self.message: html.message(_ASK), self.anyway: gr.Button(visible=True)}
                return self._look(request, shown) | asked
            self._submit(
                request, values | {"video": str(upload.video)}, upload, is_trial=button == "trial"
            )
        except LatentSyncError as error:
            return self._look(request, shown) | quiet | {self.message: html.message(str(error))}
        return self._look(request) | quiet

    def _submit(
        self, request: gr.Request, values: dict[str, Any], upload: Upload, *, is_trial: bool
    ) -> None:
        """Raises as `jobs.submit`."""
        if values["bundle"] is None:
            raise InputError("model: is missing; choose one")
        options, files = parts.changed(values)
        if is_trial:
            options["preview_s"] = _PREVIEW_S
        files = {"video": values["video"], "audio": values["audio"], **files}
        is_open = values["bundle"] == next(iter(self._bundles))
        folder = None if is_open else self._bundles[values["bundle"]]
        settings = {"options": options, "bundle": folder, "values": values, "files": files}
        jobs.submit(self._service, settings, upload, request.cookies.get(COOKIE, ""))

    def _owns(self, request: gr.Request, job_id: str | None) -> bool:
        return job_id in jobs.of_browser(self._service, request.cookies.get(COOKIE))

    def _cancel(self, request: gr.Request, shown: str | None) -> Updates:
        if shown is not None and self._owns(request, shown):
            with suppress(UnknownJob, NotNow):  # it has just ended
                self._service.jobs.cancel(shown)
                self._canceling.add(shown)
        return self._look(request, shown)

    def _delete(self, request: gr.Request, shown: str | None) -> Updates:
        """Deletes a job; none where the user did not confirm it."""
        if shown is None:
            return gr.skip()
        if self._owns(request, shown):
            with suppress(UnknownJob):
                self._service.jobs.delete(shown)
        return self._look(request)

    def _use_again(self, request: gr.Request, shown: str | None) -> Updates:
        """Puts files and settings of a job into the form."""
        if shown and self._owns(request, shown):
            settings = jobs.settings_of(self._service, shown)
        else:
            settings = {}
        if not settings:
            return {self.message: html.message("job: was deleted; choose another one")}
        return self._fill(settings["values"])

    def _restore(self, kept: str) -> Updates:
        """Puts what was kept by the browser into the form, after a reload."""
        try:
            form = json.loads(kept or "[]")
            values = dict(zip(self.given, form, strict=True))
        except (ValueError, TypeError):  # nothing, or of another version
            return gr.skip()
        for name in self.files & values.keys():
            if isinstance(values[name], dict):
                values[name] = values[name].get("path")
        if isinstance(values["video"], str):
            values["video"] = str(source_of(Path(values["video"])))
        return self._fill(values)

    def _fill(self, values: Mapping[str, Any]) -> Updates:
        """Puts values into the form; says which files are not there any longer, and leaves out what
        does not fit.
        """
        updates: Updates = {self.message: html.message()}
        gone = list[str]()
        for name, control in self.given.items():
            value = values.get(name)
            if name in self.files and value is not None and not self.inputs.has(str(value)):
                gone.append(control.label)
            elif name in self.files or parts.fits(control, value):
                updates[control] = value
            elif name == "bundle":
                gone.append(control.label)
        if updates.get(self.inputs.video):
            upload = Upload(Path(values["video"]))
            copy = copy_of(upload.video)
            if copy.is_file():  # what browsers cannot play, Gradio would convert itself
                upload.playable = copy
                updates[self.inputs.video] = str(copy)
            updates[self.inputs.upload] = upload
        if gone:
            updates[self.message] = html.message(
                f"{', '.join(gone)}: not kept any longer; choose again"
            )
        return updates

    def _look(self, request: gr.Request, shown: str | None = None) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest."""
        known = jobs.of_browser(self._service, request.cookies.get(COOKIE))
        self._canceling -= {one.id for one in known.values() if one.state not in OPEN}
        job = known.get(shown if shown in known else next(iter(known), ""))
        problem = self._service.problem()
        providers = " and ".join(self._service.providers()).replace("cpu", "CPU")
        labels = [
            (parts.job_label(one, jobs.settings_of(self._service, one.id)), one.id)
            for one in known.values()
        ]
        # What a user chooses while this is on its way stays chosen.
        choice = {} if shown in known else {"value": job and job.id}
        is_open = job is not None and job.state in OPEN
        changes = bool(problem) or any(one.state in OPEN for one in known.values())
        return {
            self.progress: str(html.empty()) if job is None else self._card(job, problem),
            self.cancel: gr.Button(
                visible=is_open, interactive=job is None or job.id not in self._canceling
            ),
            self.history: gr.Radio(labels, visible=bool(labels), **choice),
            self.job_buttons: gr.Row(visible=job is not None),
            self.timer: gr.Timer(active=changes),
            self.model: html.note(problem or (f"runs on {providers}" if providers else "ready")),
        }

    def _card(self, job: JobStatus, problem: str) -> str:
        """State and result of a job."""
        has_preview, has_page = (
            (self._service.jobs.folder(job.id) / name).is_file() for name in (PREVIEW, PAGE)
        )
        card = html.card(job, problem, parts.verdict(job), has_preview, job.id in self._canceling)
        if job.state == "done":
            card += html.result(f"v1/jobs/{job.id}", self._service.jobs.result(job.id)[1], has_page)
        return str(card)


def _refuse_forged(blocks: gr.Blocks) -> None:
    """Answers values that no control can have, which the page's own script does not send, without a
    traceback.

    Methods of Gradio are replaced, as it has no handler for errors of its own code, and prints the
    traceback of each.
    """
    preprocess = blocks.preprocess_data
    process = blocks.process_api

    async def checked(*arguments: Any, **more: Any) -> Any:
        try:
            return await preprocess(*arguments, **more)
        except Exception as error:  # only Gradio's own code runs there
            raise gr.Error(f"request: {error}") from error

    async def told(*arguments: Any, **more: Any) -> Any:
        try:
            return await process(*arguments, **more)
        except gr.Error as error:
            error.print_exception = False
            raise

    blocks.preprocess_data = checked
    blocks.process_api = told


def _refuse_addresses(block: Any) -> None:
    """Refuses URLs as paths of files, which Gradio would download, of any size.

    A method of Gradio is replaced, as it has no setting for that.
    """
    move = block.async_move_resource_to_block_cache

    async def checked(path: str | Path | None) -> str | None:
        if path is not None and "://" in str(path):
            raise gr.Error("file: is an address; send the file itself")
        found: str | None = await move(path)
        return found

    # Not in a subclass: Gradio writes a stub beside the module of one.
    block.async_move_resource_to_block_cache = checked
