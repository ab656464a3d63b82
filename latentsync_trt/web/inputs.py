"""What the page is given: a video, its people, and speech."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.workers import machine_bytes
from latentsync_trt.errors import LatentSyncError, MediaError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import ChildDied, People, Pool
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
        self._uploads, self._limits, self._making_demo = uploads, limits, threading.Lock()
        self.search = Pool("search for faces", _SEARCHES, machine_bytes() / 4, _SEARCH_S + limits.max_clip_s)
        label = "Video, photo or GIF"
        self.video = gr.Video(label=label, sources=["upload", "webcam"], elem_id="video", interactive=True)
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
        self._options, self._message = options, message
        people = [self.video, self.upload, self.note, self.faces, self.speaking, message]
        fresh = [*people, options["face"], options["start"], options["end"]]
        self.demo.click(self.show_demo, None, [self.video, self.speech], **QUICK)
        chosen = self.faces.select(self._choose, None, options["face"], **QUICK)
        self.speaking.click(self._choose_speaking, None, [options["face"], self.faces, self.note], **QUICK)
        taken = self.video.change(self._take, [self.video, self.upload], fresh, trigger_mode="multiple", **QUICK)
        found = taken.then(
            self._find, self.upload, people, concurrency_limit=_SEARCHES, trigger_mode="multiple",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        return chosen, found

    def show_demo(self) -> tuple[str, str]:
        folder = self._uploads / "demo"
        video, speech = folder / "demo.mp4", folder / SPEECH.name
        with self._making_demo:
            if not (video.is_file() and speech.is_file()):  # at first, and when Gradio has deleted them
                folder.mkdir(exist_ok=True)
                demo_clip(folder)
                shutil.copyfile(SPEECH, speech)
        return str(video), str(speech)

    def _choose(self, picked: gr.SelectData) -> str:
        return f"index:{picked.index}"

    def _choose_speaking(self) -> Updates:
        note = gr.HTML(html.note("At each time, the face that speaks in the video is painted."))
        return {self._options["face"]: "speaking", self.faces: gr.Gallery(selected_index=None), self.note: note}

    def _take(self, video: str | None, upload: Upload | None) -> Updates:
        """Forgets the earlier video, and ends the search for its people."""
        if (upload is None and video is None) or (upload and video and Path(video) in (upload.video, upload.playable)):
            return gr.skip()
        if upload is not None:
            upload.state = "replaced"
        if video is not None and not Path(video).is_relative_to(self._uploads):
            raise gr.Error("video: is none that was uploaded", print_exception=False)
        return {
            self.upload: None if video is None else Upload(Path(video)),
            self.note: gr.HTML(visible=False),
            self.faces: gr.Gallery([], visible=False, selected_index=None),
            self.speaking: gr.Button(visible=False),
            self._message: html.message(),
            self._options["face"]: "largest",
            self._options["start"]: "",
            self._options["end"]: "",
        }

    async def _find(self, upload: Upload | None) -> AsyncIterator[Updates]:
        """Finds the people of a new video, and shows a copy of what browsers cannot play."""
        if upload is None or upload.state != "new":
            yield gr.skip()
            return
        upload.state = "searching"

        def watch(told: Path | Progress | None) -> None:
            if upload.state != "searching":
                raise LatentSyncError("search: is not wanted any longer")
            if isinstance(told, Progress):
                upload.progress = told
            elif told is not None:
                upload.playable = told

        copy = upload.video.with_name(f"{upload.video.name}.preview.mp4")
        call = asyncio.to_thread(self.search.call, look_at, upload.video, copy, self._limits, watch=watch)
        search = asyncio.create_task(call)
        # Else asyncio logs that no one asks.
        search.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while upload.state == "searching" and not (await asyncio.wait([search], timeout=_POLL_S))[0]:
                yield {self.note: gr.HTML(html.searching(upload.progress), visible=True), **self._copy(upload)}
            if upload.state == "searching":
                upload.people, upload.built_in = await search
                yield {**self._copy(upload), **self._found(upload.people)}
            elif upload.state == "stopped":
                yield {self.note: gr.HTML(visible=False)}
        except LatentSyncError as error:
            yield self._failed(upload, error)
        finally:  # also where the browser leaves
            upload.state = "over"

    def _copy(self, upload: Upload) -> Updates:
        return {} if upload.playable is None else {self.video: str(upload.playable)}

    def _found(self, people: People) -> Updates:
        times = [f" · {seen_s:.1f} s" if seen_s else "" for _, seen_s in people.portraits]
        portraits = [(people.portraits[number][0], f"{number}{time}") for number, time in enumerate(times)]
        note = gr.HTML(html.found(len(portraits)), visible=True)
        several = gr.Button(visible=len(portraits) > 1)
        return {self.faces: gr.Gallery(portraits, visible=True), self.speaking: several, self.note: note}

    def _failed(self, upload: Upload, error: LatentSyncError) -> Updates:
        """Says why no one was found; takes away what is no video."""
        text, others = str(error).replace(str(upload.video), upload.video.name), dict[Any, Any]()
        if isinstance(error, TooLarge | ChildDied):  # a job may have what it needs
            text = f"{text}; a job takes the largest face"
        elif isinstance(error, MediaError):
            others = {self.video: None, self.upload: None}
        else:
            upload.problem = text
        return {self.note: gr.HTML(visible=False), self._message: html.message(text), **others}
