"""A part of the result that is shown is done again, and undone."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import gradio as gr

from latentsync_trt.batch.job_store import OPEN
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.files import whole_file
from latentsync_trt.serve.admission import UnknownJob
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.serve.service import Service
from latentsync_trt.web import parts
from latentsync_trt.web.inputs import QUICK, Updates, note_finished
from latentsync_trt.web.jobs import SETTINGS_FILE, jobs_of_browser, settings_of

_AS_BEFORE = ("As it was", "")
_LEAVE_SOURCE = ("Leave the source", "source")
"""A choice beside the presets: the part is not painted."""


class RedoControls:
    """Span, seed and preset of a part, and what begins and undoes it, within the page that is being
    made.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        with gr.Column(visible=False, elem_id="redo") as self.box:
            with gr.Row(elem_id="redo-span"):
                self._start = gr.Number(
                    label="From (s)", precision=2, min_width=80, elem_id="redo-from"
                )
                self._end = gr.Number(
                    label="Until (s)", precision=2, min_width=80, elem_id="redo-until"
                )
                self._seed = gr.Number(
                    1, label="Seed", precision=0, min_width=80, elem_id="redo-seed"
                )
                self._preset = gr.Dropdown(
                    [_AS_BEFORE, *parts.preset_choices(), _LEAVE_SOURCE],
                    value="",
                    label="Preset",
                    filterable=False,
                    min_width=120,
                    elem_id="redo-preset",
                )
            self._begin = gr.Button("Do this part again", size="sm", elem_id="redo-begin")
        self.undo = gr.Button("Undo: the result before", size="sm", visible=False, elem_id="undo")

    def connect(
        self, look: Callable[..., Updates], history: Any, status: list[Any], message: Any
    ) -> None:
        """Adds the events; `look`: shows a job and the list of all, and updates `status`."""

        def begin(request: gr.Request, job_id: str | None, *values: Any) -> Updates:
            text = ""
            try:
                self._redo(request, job_id, values)
                job_id = None  # the newest
            except LatentSyncError as error:
                text = str(error)
            return {**look(request, job_id), message: parts.html.message(text)}

        def undo(request: gr.Request, job_id: str | None) -> Updates:
            return look(request, self._undone(request, job_id), chooses=True)

        values = [history, self._start, self._end, self._seed, self._preset]
        note_finished(self._begin.click(begin, values, [*status, message], **QUICK))
        note_finished(self.undo.click(undo, history, status, **QUICK))

    def updates(self, job: JobStatus | None, jobs: Mapping[str | None, JobStatus]) -> Updates:
        """Returns what is visible with a job of a browser that has these `jobs`."""
        is_whole = False
        can_undo = False
        if job is not None:
            settings = settings_of(self._service, job.id)
            is_preview = "preview_s" in settings.get("options", {})
            is_whole = job.state == "done" and not is_preview
            can_undo = job.state not in OPEN and job.redo_of in jobs
        return {
            self.box: gr.update(visible=is_whole),
            self.undo: gr.update(visible=can_undo),
        }

    def _redo(self, request: gr.Request, job_id: str | None, values: tuple[Any, ...]) -> None:
        """Queues a job for the part; raises as `Intake.redo`."""
        if job_id is None or job_id not in jobs_of_browser(self._service, request.cookies):
            raise UnknownJob("job: was deleted; choose another one")
        start_s, end_s, seed, preset = values
        changes: dict[str, Any] = {"redo": [f"{start_s or 0}:{end_s or 0}"]}
        if preset == _LEAVE_SOURCE[1]:
            changes["keep_source"] = True
        else:
            changes["seed"] = seed
        if preset not in ("", _LEAVE_SOURCE[1]):
            changes["preset"] = preset
        settings = settings_of(self._service, job_id)
        new_id = self._service.intake.redo(job_id, changes)
        settings["redo"] = f"{start_s:g}–{end_s:g} s again"
        with suppress(LatentSyncError, OSError):  # it was deleted meanwhile
            path = self._service.jobs.folder(new_id) / SETTINGS_FILE
            with whole_file(path) as part:
                part.write_text(json.dumps(settings), "utf-8")

    def _undone(self, request: gr.Request, job_id: str | None) -> str | None:
        """Deletes a job that did a part again; returns the one whose result it began with."""
        jobs = jobs_of_browser(self._service, request.cookies)
        job = jobs.get(job_id)
        if job is None or job.redo_of not in jobs:
            return job_id
        with suppress(UnknownJob):
            self._service.jobs.delete(job.id)
        return job.redo_of


def without_replaced(
    jobs: Mapping[str | None, JobStatus],
) -> dict[str | None, JobStatus]:
    """Returns the jobs whose results have not been replaced by those of others."""
    listed = dict(jobs)
    for job in jobs.values():
        if job.state == "done":
            listed.pop(job.redo_of, None)
    return listed
