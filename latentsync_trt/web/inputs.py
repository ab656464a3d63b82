"""What the page is given: a video, its people, and speech."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.bundle.machine import machine_bytes
from latentsync_trt.errors import LatentSyncError, MediaError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import ChildDied, Pool
from latentsync_trt.types import Progress
from latentsync_trt.web.jobs import Upload, look_at
from latentsync_trt.web.parts import html

_SEARCHES, _SEARCH_S = 2, 120.0
"""Searches at once, and the time that each may take, beside as long as the longest video plays."""
_POLL_S = 0.5

QUICK: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
"""Of events that are answered at once."""

Updates = dict[Any, Any]


class Inputs:
    """Components and events of video, people and speech, within the page that is being made."""

    def __init__(self, uploads: Path, limits: Limits) -> None:
        """`uploads`: the folder from which Gradio serves files."""
        self._uploads, self._limits = uploads, limits
        self.search = Pool("search for faces", _SEARCHES, machine_bytes() / 4, _SEARCH_S + limits.max_clip_s)
        self.video = gr.Video(label="Video, photo or GIF", sources=["upload", "webcam"], elem_id="video")
        gr.HTML(html.timeline(), elem_id="timeline")
        self.speech = gr.Audio(
            label="Speech", sources=["upload", "microphone"], type="filepath", buttons=[], elem_id="speech"
        )
        self.demo = gr.Button("Try the built-in clip", size="sm", elem_id="demo")
        self.note = gr.HTML(visible=False, elem_id="people-note")
        self.faces = gr.Gallery(
            label="People", show_label=False, columns=8, height="auto", object_fit="cover", allow_preview=False,
            buttons=[], interactive=False, visible=False, elem_id="faces",
        )  # fmt: skip
        self.speaking = gr.Button("Whoever speaks", size="sm", visible=False, elem_id="speaking")
        self.upload = gr.State(None)

    def connect(self, options: dict[str, Any], message: Any) -> tuple[Any, Any]:
        """Adds the events; returns the choice of a face, and a search for faces. `message`: where errors are shown."""
        self._message, self._of_video = message, {options["face"]: "largest", options["start"]: "", options["end"]: ""}
        shown = [self.video, self.upload, self.note, self.faces, self.speaking, message, *self._of_video]
        self.demo.click(self.show_demo, None, [self.video, self.speech], **QUICK)
        chosen = self.faces.select(self._choose, None, options["face"], **QUICK)
        self.speaking.click(self._choose_speaking, None, [options["face"], self.faces, self.note], **QUICK)
        found = self.video.change(
            self._take, [self.video, self.upload], shown, concurrency_limit=None, trigger_mode="multiple",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        return chosen, found

    def show_demo(self) -> tuple[str, str]:
        folder = self._uploads / "demo"
        video, speech = folder / "demo.mp4", folder / SPEECH.name
        if not (video.is_file() and speech.is_file()):  # at first, and when Gradio has deleted them
            folder.mkdir(exist_ok=True)
            demo_clip(folder)
            shutil.copyfile(SPEECH, speech)
        return str(video), str(speech)

    def _choose(self, picked: gr.SelectData) -> str:
        return f"index:{picked.index}"

    def _choose_speaking(self) -> tuple[Any, ...]:
        note = html.note("At each time, the face that speaks in the video is painted.")
        return "speaking", gr.Gallery(selected_index=None), note

    async def _take(self, video: str | None, upload: Upload | None) -> AsyncIterator[Updates]:
        """Forgets the earlier video, finds the people of a new one, and shows a copy of what browsers cannot play."""
        if upload is None or video is None or Path(video) not in (upload.video, upload.playable):
            if upload is not None:
                upload.state = "over"
            if video is not None and not Path(video).is_relative_to(self._uploads):
                raise gr.Error("video: was not uploaded", print_exception=False)
            upload = None if video is None else Upload(Path(video))
            yield {
                self.upload: upload,
                self.note: gr.HTML(visible=False),
                self.faces: gr.Gallery([], visible=False, selected_index=None),
                self.speaking: gr.Button(visible=False),
                self._message: html.message(),
                **self._of_video,
            }
        if upload is None or upload.state != "new":
            yield gr.skip()
            return
        upload.state = "searching"
        search = asyncio.create_task(asyncio.to_thread(self._search, upload))
        # Else asyncio logs that no one asks.
        search.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while upload.state == "searching" and not (await asyncio.wait([search], timeout=_POLL_S))[0]:
                yield {self.note: gr.HTML(html.searching(upload.progress), visible=True), **self._copy(upload)}
            if upload.state == "searching":
                people = await search
                yield {
                    **self._copy(upload),
                    self.faces: gr.Gallery(people, visible=True),
                    self.speaking: gr.Button(visible=len(people) > 1),
                    self.note: gr.HTML(html.found(len(people)), visible=True),
                }
        except LatentSyncError as error:
            yield self._failed(upload, error)
        finally:  # also where the browser leaves
            upload.state = "over"

    def _search(self, upload: Upload) -> list[Any]:
        """Returns the people of a video, as `gr.Gallery` takes them."""

        def watch(told: Path | Progress | None) -> None:
            if upload.state != "searching":
                raise LatentSyncError("search: is not wanted any longer")
            if isinstance(told, Progress):
                upload.progress = told
            elif told is not None:
                upload.playable = told

        copy = upload.video.with_name(f"{upload.video.name}.preview.mp4")
        found = self.search.call(look_at, upload.video, copy, self._limits, watch=watch)
        upload.tracks, people, upload.built_in = found
        return list(people)

    def _copy(self, upload: Upload) -> Updates:
        return {} if upload.playable is None else {self.video: str(upload.playable)}

    def _failed(self, upload: Upload, error: LatentSyncError) -> Updates:
        """Says why no one was found; takes away what is no video."""
        text = str(error).replace(str(upload.video), upload.video.name)
        if isinstance(error, TooLarge | ChildDied):  # a job may have what it needs
            text = f"{text}; a job takes the largest face"
        gone = {self.video: None, self.upload: None} if isinstance(error, MediaError) else {}
        return {self.note: gr.HTML(visible=False), self._message: html.message(text), **gone}
