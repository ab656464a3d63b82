"""The endpoint `/sync`, for `gradio_client`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.ledger import OPEN
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.admission import NotNow, UnknownJob
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs

_POLL_S = 0.3


def add_api(service: Service, uploads: Path, inputs: list[Any]) -> None:
    """Adds the endpoint to the page that is being made.

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
                    await asyncio.sleep(_POLL_S)
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
