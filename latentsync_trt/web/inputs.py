"""What the page is given: a video, its people, and speech."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.child import ChildLost
from latentsync_trt.errors import LatentSyncError, MediaError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import Pool
from latentsync_trt.web.jobs import COOKIE
from latentsync_trt.web.mask_painter import MaskPainter
from latentsync_trt.web.parts import html
from latentsync_trt.web.people_search import PeopleSearch
from latentsync_trt.web.people_voices import PeopleVoices, number_of
from latentsync_trt.web.uploads import Upload, check_speech

_FILE_CHECKS = 2
"""Checks of speech, and copies for comparison, that run at once."""

_PROGRESS_S = 0.5
"""How often the page says how far a search is."""

QUICK: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
"""Settings of events that are answered at once."""

Updates = dict[Any, Any]
"""New values of components."""


class ClipInputs:
    """Components and events of video, people and speech, within the page that is being made."""

    def __init__(self, uploads: Path, limits: Limits) -> None:
        """`uploads` is the folder from which Gradio serves files."""
        self._uploads = uploads
        self._limits = limits
        self._reset: Updates = {}
        """What a new video sets controls of options to, which `connect` names."""
        self.search = PeopleSearch(limits)
        self.files = Pool("check of the file", _FILE_CHECKS)
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
        self.voices = PeopleVoices(self.files, limits)
        self.mask = MaskPainter(self.files, uploads)
        self.upload = gr.State(None)

    def connect(self, options: dict[str, Any]) -> tuple[Any, Any]:
        """Adds the events; returns the choice of a person, and a search for people."""
        face = options["face"]
        keep_mask = options["keep_mask"]
        self._reset |= {face: "largest", options["start"]: "", options["end"]: ""}
        self._reset |= {self.voices.kept: "", keep_mask: None}
        self._reset[self.mask.box] = gr.update(open=False)
        self.mask.connect(self.upload, keep_mask)
        self.voices.connect(self.upload, face)
        people = [self.note, self.faces, self.speaking]
        changes = [self.video, self.upload, *people, self.video_error, *self._reset]
        clicked = self.demo.click(self.show_demo, None, [self.video, self.speech], **QUICK)
        note_finished(clicked)
        chosen_speaking = [face, self.faces, self.note]
        note_finished(self.speaking.click(self._choose_speaking, None, chosen_speaking, **QUICK))
        chosen = self.faces.select(self._choose, None, face, **QUICK)
        checked = [self.speech, self.speech_error]
        self.speech.change(self._check_speech, self.speech, checked, **QUICK)
        searched = self.video.change(
            self._take, [self.video, self.upload, face], changes,
            concurrency_limit=None, trigger_mode="multiple",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        return chosen, searched

    def has(self, path: str) -> bool:
        """Returns whether a file is an upload that is still kept."""
        return Path(path).resolve().is_relative_to(self._uploads) and Path(path).is_file()

    def show_demo(self) -> tuple[str, str]:
        """Returns the paths of the built-in clip and its speech."""
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
            text = _message(error, Path(speech))
            return {self.speech: None, self.speech_error: html.message(text)}
        return {self.speech_error: html.message()}

    async def _take(
        self, request: gr.Request, video: str | None, upload: Upload | None, face: str
    ) -> AsyncIterator[Updates]:
        """Forgets the earlier video, finds the people of a new one, and shows a copy of what
        browsers cannot play.
        """
        is_new = upload is None or video is None
        if upload is not None and video is not None:
            is_new = Path(video) not in (upload.video, upload.playable)
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
                **self._reset,
            }
            face = "largest"
        if upload is None or upload.state != "new":
            yield gr.skip()
            return
        self.search.begin(request.cookies.get(COOKIE, ""), upload)
        async for updates in self._follow_search(upload, face):
            yield updates

    async def _follow_search(self, upload: Upload, face: str) -> AsyncIterator[Updates]:
        """Finds the people of a video while saying how far it is."""
        search = asyncio.create_task(asyncio.to_thread(self.search.run, upload))
        # Else asyncio logs that no one asks.
        search.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while upload.state == "searching":
                ended, _ = await asyncio.wait([search], timeout=_PROGRESS_S)
                if ended:
                    break
                note = gr.HTML(html.searching(upload.progress), visible=True)
                yield {self.note: note, **self._playable(upload)}
            if upload.state == "replaced":
                note = (
                    "Not searched: another video came from this browser. The largest face is used."
                )
                yield {self.note: html.note(note)}
            if upload.state == "searching":
                analysis = await search
                people = [(person.portrait, person.caption) for person in analysis.people]
                yield {
                    **self._playable(upload),
                    self.faces: gr.Gallery(people, visible=True, selected_index=number_of(face)),
                    self.speaking: gr.Button(visible=len(people) > 1),
                    self.note: gr.HTML(html.people(len(people)), visible=True),
                }
        except LatentSyncError as error:
            yield self._failed(upload, error)
        finally:  # also where the browser leaves
            upload.state = "over"

    def _playable(self, upload: Upload) -> Updates:
        if upload.playable is None:
            return {}
        return {self.video: str(upload.playable)}

    def _failed(self, upload: Upload, error: LatentSyncError) -> Updates:
        """Says why no one was found; takes away what is no video."""
        text = _message(error, upload.video)
        if isinstance(error, TooLarge | ChildLost):  # a job may have what it needs
            text = f"{text}; a job takes the largest face"
        updates: Updates = {self.note: gr.HTML(visible=False), self.video_error: html.message(text)}
        if isinstance(error, MediaError):
            updates |= {self.video: None, self.upload: None}
        return updates


def _message(error: LatentSyncError, upload: Path) -> str:
    """Returns a message with the name of an upload in place of its path."""
    return str(error).replace(str(upload), upload.name)


def note_finished(event: Any) -> None:
    """Lets the button of an event show that its work has ended."""
    event.then(js="() => page.idle()")
