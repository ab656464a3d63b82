"""What the page is given: a video, its people, and speech."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr

from latentsync_trt.bundle.machine import machine_bytes
from latentsync_trt.child import ChildLost
from latentsync_trt.errors import LatentSyncError, MediaError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import Pool
from latentsync_trt.types import Progress
from latentsync_trt.web.jobs import COOKIE, Upload, check_speech, look_at
from latentsync_trt.web.parts import html

_SEARCHES = 2
_SEARCH_S = 120.0
_SEARCH_BYTES = 2.5e9
"""Searches at once; time and memory that each may take."""
_FILES = 2, 1.5e9, 120.0
"""The same, of checks of speech and of copies for comparison."""
_POLL_S = 0.5

QUICK: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
"""Of events that are answered at once."""

Updates = dict[Any, Any]


class Inputs:
    """Components and events of video, people and speech, within the page that is being made.

    `files`: children that look at other files than videos, and write copies.
    """

    def __init__(self, uploads: Path, limits: Limits) -> None:
        """`uploads`: the folder from which Gradio serves files."""
        self._uploads = uploads
        self._limits = limits
        self._searches = WeakValueDictionary[str, Upload]()
        """The latest of each browser."""
        self.search = Pool(
            "search for faces", _SEARCHES, min(_SEARCH_BYTES, machine_bytes() / 4), _SEARCH_S
        )
        self.files = Pool("check of the file", *_FILES)
        self.video = gr.Video(
            label="Video, photo or GIF", sources=["upload", "webcam"], elem_id="video"
        )
        self.video_error = gr.HTML(html.message(), elem_id="video-error")
        gr.HTML(html.timeline(), elem_id="timeline")
        self.speech = gr.Audio(
            label="Speech",
            sources=["upload", "microphone"],
            type="filepath",
            buttons=[],
            elem_id="speech",
        )
        self.speech_error = gr.HTML(html.message(), elem_id="speech-error")
        self.demo = gr.Button("Try the built-in clip", size="sm", elem_id="demo")
        self.note = gr.HTML(visible=False, elem_id="people-note")
        self.faces = gr.Gallery(
            label="People", show_label=False, columns=8, height="auto", object_fit="cover",
            allow_preview=False, buttons=[], interactive=False, visible=False, elem_id="faces",
        )  # fmt: skip
        self.speaking = gr.Button("Whoever speaks", size="sm", visible=False, elem_id="speaking")
        self.upload = gr.State(None)

    def connect(self, options: dict[str, Any]) -> tuple[Any, Any]:
        """Adds the events; returns the choice of a person, and a search for people."""
        face = options["face"]
        self._of_video = {face: "largest", options["start"]: "", options["end"]: ""}
        changes = [
            self.video,
            self.upload,
            self.note,
            self.faces,
            self.speaking,
            self.video_error,
            *self._of_video,
        ]
        answered(self.demo.click(self.show_demo, None, [self.video, self.speech], **QUICK))
        answered(
            self.speaking.click(self._choose_speaking, None, [face, self.faces, self.note], **QUICK)
        )
        chosen = self.faces.select(self._choose, None, face, **QUICK)
        self.speech.change(
            self._check_speech, self.speech, [self.speech, self.speech_error], **QUICK
        )
        searched = self.video.change(
            self._take, [self.video, self.upload, face], changes,
            concurrency_limit=None, trigger_mode="multiple",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        return chosen, searched

    def has(self, path: str) -> bool:
        """Whether a file is an upload that is still kept."""
        return Path(path).resolve().is_relative_to(self._uploads) and Path(path).is_file()

    def show_demo(self) -> tuple[str, str]:
        folder = self._uploads / "demo"
        video = folder / "demo.mp4"
        speech = folder / SPEECH.name
        if not (video.is_file() and speech.is_file()):  # at first, and when Gradio has deleted them
            folder.mkdir(exist_ok=True)
            demo_clip(folder)
            shutil.copyfile(SPEECH, speech)
        return str(video), str(speech)

    def _choose(self, picked: gr.EventData) -> str:
        try:
            number = picked.index  # of what the browser sent, which may be anything
        except (AttributeError, TypeError):
            number = None
        if not isinstance(number, int):
            raise gr.Error("person: is no number")
        return f"index:{number}"

    def _choose_speaking(self) -> tuple[Any, ...]:
        note = html.note("At each time, the person who speaks in the video is painted.")
        return "speaking", gr.Gallery(selected_index=None), note

    async def _check_speech(self, speech: str | None) -> Updates:
        """Takes away what cannot be read, and says why."""
        if speech is None:  # perhaps because it has just been taken away
            return gr.skip()
        try:
            await asyncio.to_thread(self.files.call, check_speech, Path(speech), self._limits)
        except LatentSyncError as error:
            return {self.speech: None, self.speech_error: html.message(_said(error, Path(speech)))}
        return {self.speech_error: html.message()}

    async def _take(
        self, request: gr.Request, video: str | None, upload: Upload | None, face: str
    ) -> AsyncIterator[Updates]:
        """Forgets the earlier video, finds the people of a new one, and shows a copy of what
        browsers cannot play.
        """
        is_new = (
            upload is None or video is None or Path(video) not in (upload.video, upload.playable)
        )
        if is_new and (video or upload):  # else it was taken away, and why is shown
            if upload is not None:
                upload.state = "over"
            if video is not None and not self.has(video):
                raise gr.Error("video: is no upload that is kept; choose it again")
            upload = None
            note = gr.HTML(visible=False)
            if video is not None:
                upload = Upload(Path(video))
                note = gr.HTML(html.searching(upload.progress), visible=True)
            yield {
                self.upload: upload,
                self.note: note,
                self.faces: gr.Gallery([], visible=False, selected_index=None),
                self.speaking: gr.Button(visible=False),
                self.video_error: html.message(),
                **self._of_video,
            }
            face = "largest"
        if upload is None or upload.state != "new":
            yield gr.skip()
            return
        self._replace_search(request.cookies.get(COOKIE, ""), upload)
        async for updates in self._look_at(upload, face):
            yield updates

    def _replace_search(self, browser: str, upload: Upload) -> None:
        """Begins a search; a browser has one at a time, so that none takes all the room."""
        upload.state = "searching"
        earlier = self._searches.get(browser)
        if earlier is not None and earlier.state == "searching":
            earlier.state = "replaced"
        if browser:
            self._searches[browser] = upload

    async def _look_at(self, upload: Upload, face: str) -> AsyncIterator[Updates]:
        """Finds the people of a video while telling how far it is."""
        search = asyncio.create_task(asyncio.to_thread(self._search, upload))
        # Else asyncio logs that no one asks.
        search.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while (
                upload.state == "searching"
                and not (await asyncio.wait([search], timeout=_POLL_S))[0]
            ):
                yield {
                    self.note: gr.HTML(html.searching(upload.progress), visible=True),
                    **self._copy(upload),
                }
            if upload.state == "replaced":
                note = (
                    "Not searched: another video came from this browser. The largest face is used."
                )
                yield {self.note: html.note(note)}
            if upload.state == "searching":
                people = await search
                chosen = int(face[6:]) if face.startswith("index:") and face[6:].isdigit() else None
                yield {
                    **self._copy(upload),
                    self.faces: gr.Gallery(people, visible=True, selected_index=chosen),
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

        found = self.search.call(look_at, upload.video, self._limits, watch=watch)
        upload.tracks, people, upload.built_in = found
        return list(people)

    def _copy(self, upload: Upload) -> Updates:
        if upload.playable is None:
            return {}
        return {self.video: str(upload.playable)}

    def _failed(self, upload: Upload, error: LatentSyncError) -> Updates:
        """Says why no one was found; takes away what is no video."""
        text = _said(error, upload.video)
        if isinstance(error, TooLarge | ChildLost):  # a job may have what it needs
            text = f"{text}; a job takes the largest face"
        if isinstance(error, MediaError):
            gone = {self.video: None, self.upload: None}
        else:
            gone = {}
        return {self.note: gr.HTML(visible=False), self.video_error: html.message(text), **gone}


def _said(error: LatentSyncError, upload: Path) -> str:
    """A message with the name of an upload in place of its path."""
    return str(error).replace(str(upload), upload.name)


def answered(event: Any) -> None:
    """Lets the button of an event show that its work has ended."""
    event.then(js="() => page.idle()")
