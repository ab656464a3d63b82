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
from latentsync_trt.web import parts
from latentsync_trt.web.inputs import QUICK, ClipInputs, Updates, note_finished
from latentsync_trt.web.jobs import COOKIE, jobs_of_browser, settings_of, submit
from latentsync_trt.web.layout import PREVIEW_S, Actions, Header, Results, add_options
from latentsync_trt.web.page_form import PageForm
from latentsync_trt.web.parts import html
from latentsync_trt.web.people_voices import speech_files
from latentsync_trt.web.redo_controls import without_replaced
from latentsync_trt.web.refusals import refuse_addresses, refuse_forged
from latentsync_trt.web.uploads import Upload, fits_demo, source_of

_REFRESH_S = 1.0
"""How often the page asks for the state of an open job."""

_CLEAN_S = 60
"""How often Gradio deletes old uploads."""

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
"""What is seen from the click on until a job is submitted."""

_DELETE = """(job) => [confirm("Delete this job, with its files?") ? job : null]"""


class Page:
    """The page of a service. Its components and events are in `blocks`."""

    def __init__(self, service: Service, uploads: Path, bundles: Mapping[str, str]) -> None:
        """
        Args:
            uploads: the folder from which Gradio serves files.
            bundles: folders by name, first the one that workers have open.
        """
        self._service = service
        self._bundles = bundles
        self._canceled = set[str]()
        kept_s = max(round(service.limits.keep_hours * 3600), _CLEAN_S)
        with gr.Blocks(
            title="latentsync-trt", analytics_enabled=False, delete_cache=(_CLEAN_S, kept_s)
        ) as self.blocks:
            self._header = Header(list(bundles))
            with gr.Row(elem_id="main"):
                with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                    self.inputs = ClipInputs(uploads, service.limits)
                    preset = parts.controls([parts.PRESET])
                    self._actions = Actions()
                with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                    self._results = Results(service)
            options = preset | add_options()
            self._form = PageForm(self.inputs, self._header.bundle, options, self._actions.message)
            self._timer = gr.Timer(_REFRESH_S, active=False)
            self._kept = gr.Textbox(visible=False, elem_id="kept")
            self._connect_form()
            self._connect_jobs()
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched
        # itself.
        self.blocks.has_launched = True
        refuse_forged(self.blocks)
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File | gr.ImageEditor):
                refuse_addresses(block)

    def _connect_form(self) -> None:
        """Adds the events of the form, beside those of a job."""
        form = self._form.components
        face = self._form.controls["face"]
        bundle = self._header.bundle
        chosen, searched = self.inputs.connect(self._form.controls)
        changes = (chosen.then, searched.then, bundle.change, face.change, self.blocks.load)
        for event in changes:
            event(
                self._warn,
                [self.inputs.upload, face, bundle],
                [self._header.demo_note, self._actions.anyway],
                **QUICK,
            )
        filled = self._form.filled
        restored = self.blocks.load(
            self._form.restore, self._kept, filled, js="() => [page.kept()]", **QUICK
        )
        restored.then(js="() => page.restores()")
        edits = [component.change for component in form]
        gr.on(edits, None, form, None, js="(...form) => page.keep(form)", **QUICK)
        again = self._results.again.click(self._use_again, self._results.history, filled, **QUICK)
        note_finished(again.then(js=_SHOW_START))

    def _connect_jobs(self) -> None:
        """Adds the events that begin, show and end jobs."""
        actions = self._actions
        results = self._results
        history = results.history
        status = [
            results.progress,
            actions.cancel,
            history,
            results.buttons,
            self._timer,
            self._header.state,
            results.redo.box,
            results.redo.undo,
        ]
        results.redo.connect(self._look, history, status, actions.message)
        started = [*status, actions.message, actions.anyway]
        for button in (actions.start, actions.trial, actions.anyway):
            name = gr.State(button.elem_id)
            values = [name, history, self.inputs.upload, *self._form.components]
            clicked = button.click(None, None, results.progress, js=_BEGIN, **QUICK)
            loaded = clicked.then(js="() => page.loaded()")
            begun = loaded.then(self._start, values, started, **QUICK)
            note_finished(begun.then(js=_SHOW_JOB))
        for event in (self._timer.tick, history.input):
            event(self._look, history, status, **QUICK)
        note_finished(actions.cancel.click(self._cancel, history, status, **QUICK))
        note_finished(results.delete.click(self._delete, history, status, js=_DELETE, **QUICK))
        self.blocks.load(self._look, None, status, **QUICK)

    def _smears(self, upload: Upload | None, face: str, bundle: str | None) -> bool:
        """Returns whether the built-in model would paint another face than its own, as far as the
        faces are known.
        """
        return _is_demo(self._bundles, bundle) and not fits_demo(upload, face)

    def _warn(self, upload: Upload | None, face: str, bundle: str | None) -> Updates:
        """Says what the built-in model is for, where it is chosen."""
        smears = self._smears(upload, face, bundle)
        is_demo = _is_demo(self._bundles, bundle)
        note = gr.HTML(html.demo_note(other_face=smears), visible=is_demo)
        return {self._header.demo_note: note, self._actions.anyway: gr.Button(visible=False)}

    def _start(
        self,
        request: gr.Request,
        button: str,
        job_id: str | None,
        upload: Upload | None,
        *form: Any,
    ) -> Updates:
        """Queues a job; at the button "start", asks before the built-in model paints another face
        than its own.
        """
        values = self._form.values(form)
        text = ""
        asks = False
        try:
            if upload is None and values["video"] and self.inputs.has(values["video"]):
                # the search for its people has not begun
                upload = Upload(source_of(Path(values["video"])))
            if upload is None:
                raise InputError("video: is missing; choose or record one")
            speech_files(values)
            asks = button == "start" and self._smears(upload, values["face"], values["bundle"])
            if asks:
                text = _ASK
            else:
                self._submit(request, values, upload, is_trial=button == "trial")
                job_id = None
        except LatentSyncError as error:
            text = str(error)
        return {
            **self._look(request, job_id),
            self._actions.message: html.message(text),
            self._actions.anyway: gr.Button(visible=asks),
        }

    def _submit(
        self, request: gr.Request, values: dict[str, Any], upload: Upload, *, is_trial: bool
    ) -> None:
        """Raises the errors of `submit`."""
        name = values["bundle"]
        if name is None:
            raise InputError("model: is missing; choose one")
        values = {**values, "video": str(upload.video)}
        options, files = parts.changed(values)
        speech = speech_files(values)
        if "audio" not in speech:  # they say whose faces
            options.pop("face", None)
            if not all(self.inputs.has(path) for path in speech.values()):
                raise InputError("speech: is not kept any longer; choose it again")
        if is_trial:
            options["preview_s"] = PREVIEW_S
        is_open = name == next(iter(self._bundles))
        settings = {
            "options": options,
            "bundle": None if is_open else self._bundles[name],
            "values": values,
            "files": {"video": values["video"], **speech, **files},
        }
        submit(self._service, settings, upload, request.cookies.get(COOKIE, ""))

    def _jobs(self, request: gr.Request) -> dict[str | None, JobStatus]:
        return jobs_of_browser(self._service, request.cookies)

    def _cancel(self, request: gr.Request, job_id: str | None) -> Updates:
        if job_id is not None and job_id in self._jobs(request):
            with suppress(UnknownJob, NotNow):  # it has just ended
                self._service.jobs.cancel(job_id)
                self._canceled.add(job_id)
        return self._look(request, job_id)

    def _delete(self, request: gr.Request, job_id: str | None) -> Updates:
        """Deletes a job; none where the user did not confirm it."""
        if job_id is None:
            return gr.skip()
        if job_id in self._jobs(request):
            with suppress(UnknownJob):
                self._service.jobs.delete(job_id)
        return self._look(request)

    def _use_again(self, request: gr.Request, job_id: str | None) -> Updates:
        """Puts files and settings of a job into the form."""
        settings: Mapping[str, Any] = {}
        if job_id and job_id in self._jobs(request):
            settings = settings_of(self._service, job_id)
        if not settings:
            text = "job: was deleted; choose another one"
            return {self._actions.message: html.message(text)}
        return self._form.fill(settings["values"])

    def _look(
        self, request: gr.Request, job_id: str | None = None, *, chooses: bool = False
    ) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest;
        `chooses`: also chooses it in the list.
        """
        jobs = self._jobs(request)
        listed = without_replaced(jobs)
        choice = {}
        if job_id not in listed:
            job_id = next(iter(listed), None)
            chooses = True
        if chooses:  # else what a user chooses while this is on its way stays chosen
            choice["value"] = job_id
        job = listed.get(job_id)
        is_open = job is not None and job.state in OPEN
        is_canceling = is_open and job_id in self._canceled
        labels = []
        for each in listed.values():
            label = parts.job_label(each, settings_of(self._service, each.id))
            labels.append((label, each.id))
        problem = self._service.problem()
        is_busy = any(each.state in OPEN for each in jobs.values())
        changes = bool(problem) or is_busy
        card = html.empty()
        if job is not None:
            card = _card(self._service, job, problem, is_canceling)
        return {
            self._results.progress: str(card),
            self._actions.cancel: gr.Button(visible=is_open, interactive=not is_canceling),
            self._results.history: gr.Radio(labels, visible=bool(labels), **choice),
            self._results.buttons: gr.Row(visible=job is not None),
            self._timer: gr.Timer(active=changes),
            self._header.state: html.note(problem or _state_of(self._service)),
            **self._results.redo.updates(job, jobs),
        }


def _is_demo(bundles: Mapping[str, str], name: str | None) -> bool:
    return bundles.get(name or "") == str(demo_folder())


def _state_of(service: Service) -> str:
    """Returns what a service without a problem runs on."""
    providers = " and ".join(service.providers()).replace("cpu", "CPU")
    return f"runs on {providers}" if providers else "ready"


def _card(service: Service, job: JobStatus, problem: str, is_canceling: bool) -> Any:
    """Returns state and result of a job."""
    folder = service.jobs.folder(job.id)
    has_preview = (folder / PREVIEW).is_file()
    card = html.card(job, problem, parts.verdict(job), has_preview, is_canceling)
    if job.state == "done":
        name = service.jobs.result(job.id)[1]
        bands = parts.bands(job)
        lasts_s = (job.report or {}).get("duration_s")
        has_page = (folder / PAGE).is_file()
        card += html.result(f"v1/jobs/{job.id}", name, has_page, bands, lasts_s)
    return card
