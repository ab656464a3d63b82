"""What the page is given: a video, its people, and speech for them."""

import asyncio
import filecmp
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.workers import machine_bytes
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import ChildDied, People, Pool, Watch, find_people
from latentsync_trt.types import Progress
from latentsync_trt.web import parts
from latentsync_trt.web.previews import Previews, original

_MOST_VIDEOS, _MOST_BROWSERS = 16, 1000
"""Whose people, and whose uploads, are remembered."""
_SEARCHES, _SEARCH_S = 2, 120.0
"""Searches at once, and the time that each may take, beside as long as the longest video plays."""
_LARGEST = "largest"

SOON: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
"""How events are run: without a queue, unless they may take minutes. Gradio's page can lose the answer to an event
that it queues at the moment when the last queued one ends, such as a click while it loads.
"""

Updates = dict[Any, Any]
Voices = dict[int, str]
"""Recordings by the number of their face."""


class _Stopped(Exception):
    """Another video was chosen, or the job was started."""


@dataclass(slots=True)
class _Visit:
    """An open page: the video that it shows, and whether its people are to be looked for."""

    video: str = ""
    wanted: bool = False


@dataclass(slots=True)
class _Uploads:
    """What a browser sent last, shown again when the page is loaded again."""

    video: str = ""
    speech: str | None = None
    voices: Voices = field(default_factory=dict)


class Inputs:
    """Components and events of video, people and speech, within the page that is being made."""

    def __init__(self, uploads: Path, cookie: str, previews: Previews, limits: Limits) -> None:
        """`uploads`: the folder from which Gradio serves files. `cookie`: the name of the one that marks a browser."""
        self._uploads, self._cookie, self._previews, self._limits = uploads, cookie, previews, limits
        self._making_demo = threading.Lock()
        self._search = Pool("search for faces", _SEARCHES, machine_bytes() / 4, _SEARCH_S + limits.max_clip_s)
        self._visits: dict[str, _Visit] = {}
        self._people: dict[str, People | str] = {}
        """By video: who was found in it, or why no one was."""
        self._sent: dict[str, _Uploads] = {}
        """By browser."""
        label = "Video, photo or GIF"
        self.video = gr.Video(label=label, sources=["upload", "webcam"], elem_id="video", interactive=True)
        gr.HTML(parts.TIMELINE, elem_id="timeline")
        self.speech = gr.Audio(
            label="Speech", sources=["upload", "microphone"], type="filepath", buttons=[], elem_id="speech"
        )
        self.demo = gr.Button("Try the built-in clip", size="sm", elem_id="demo")
        self.note = gr.HTML(visible=False, elem_id="people-note")
        self.faces = gr.Gallery(
            label="People", show_label=False, columns=8, height="auto", object_fit="cover", allow_preview=False,
            buttons=[], interactive=False, visible=False, elem_id="faces",
        )  # fmt: skip
        self.each = gr.Checkbox(False, label="Each face has a recording of its own", visible=False, elem_id="each")
        self.chosen, self.voices = gr.State(0), gr.State({})

    def connect(self, blocks: gr.Blocks, options: dict[str, Any], message: Any) -> Any:
        """Adds the events; returns the one of another video. `message`: where errors are shown."""
        self._options, self._message = options, message
        people = [self.note, self.faces, self.each, self.voices, message]
        fresh = [*people, self.chosen, options["face"], options["start"], options["end"]]
        queued: dict[str, Any] = {"trigger_mode": "multiple", "api_visibility": "private"}
        self.demo.click(self.show_demo, None, [self.video, self.speech], **SOON)
        changed = self.video.change(self._forget, self.video, fresh, trigger_mode="multiple", **SOON)
        changed.then(self._find, self.video, people, concurrency_limit=_SEARCHES, show_progress_on=self.note, **queued)
        changed.then(self._show, self.video, self.video, concurrency_limit=None, show_progress="hidden", **queued)
        self.faces.select(self._choose, [self.each, self.voices], [options["face"], self.chosen, self.speech], **SOON)
        heard = [self.video, self.speech, self.each, self.chosen, self.voices]
        for event in (self.speech.change, self.each.change):
            event(self._listen, heard, [self.voices, self.speech, self.note], trigger_mode="multiple", **SOON)
        blocks.load(self._restore, None, [self.video, self.speech], **SOON)
        blocks.unload(self._leave)
        return changed

    def close(self) -> None:
        self._visits.clear()  # which ends their searches
        self._search.close()

    def people_of(self, video: str | None) -> People | str | None:
        """Returns who was found in a video that the page shows, or why no one was; None if that is not known."""
        return self._people.get(_source(video))

    def stop(self, request: gr.Request) -> None:
        """Ends the search for the people of the video that a page shows."""
        self._visit(request).wanted = False

    def _leave(self, request: gr.Request) -> None:
        self._visits.pop(request.session_hash or "", None)

    def _visit(self, request: gr.Request) -> _Visit:
        return self._visits.setdefault(request.session_hash or "", _Visit())

    def show_demo(self) -> tuple[str, str]:
        folder = self._uploads / "demo"
        video, speech = folder / "demo.mp4", folder / SPEECH.name
        with self._making_demo:
            if not (video.is_file() and speech.is_file()):  # at first, and when Gradio has deleted them
                folder.mkdir(exist_ok=True)
                demo_clip(folder)
                shutil.copyfile(SPEECH, speech)
        return str(video), str(speech)

    def is_demo(self, video: str) -> bool:
        return filecmp.cmp(_source(video), self.show_demo()[0], shallow=False)

    def _uploads_of(self, request: gr.Request) -> _Uploads:
        browser = request.cookies.get(self._cookie)
        if len(self._sent) > _MOST_BROWSERS:
            self._sent.pop(next(iter(self._sent)))
        return self._sent.setdefault(browser, _Uploads()) if browser else _Uploads()

    async def _restore(self, request: gr.Request) -> Updates:
        """Shows the uploads of a browser again."""
        sent, shown = self._uploads_of(request), dict[Any, str]()
        speech = sent.voices.get(0) if sent.voices else sent.speech
        if speech is not None and Path(speech).is_file():
            shown[self.speech] = speech
        if Path(sent.video).is_file():
            shown[self.video] = await self._playable(sent.video)
        return shown or gr.skip()

    async def _playable(self, video: str) -> str:
        made = await asyncio.to_thread(self._previews.of, Path(video))
        shown: Path = await asyncio.shield(asyncio.wrap_future(made))  # others may wait for it
        return str(shown)

    def _forget(self, video: str | None, request: gr.Request) -> Updates:
        """Ends the search for the people of an earlier video, and forgets who was found."""
        visit, sent = self._visit(request), self._uploads_of(request)
        source, options = _source(video), self._options
        if visit.video == source:  # a preview takes its place
            return gr.skip()
        visit.video, visit.wanted = source, bool(source)
        if sent.video != source:
            sent.video, sent.voices = source, {}
        return {
            self.note: gr.HTML("<p>Finding faces…</p>", visible=video is not None),
            self.faces: gr.Gallery([], visible=False),
            self.each: gr.Checkbox(False, visible=False),
            self.chosen: 0,
            self.voices: {},
            self._message: parts.message(),
            options["face"]: _LARGEST,
            options["start"]: "",
            options["end"]: "",
        }

    async def _show(self, video: str | None, request: gr.Request) -> Any:
        """Returns a preview in place of a video that browsers cannot play."""
        source = _source(video)
        shown = await self._playable(source) if source else video
        return shown if self._visit(request).video == source and shown != video else gr.skip()

    def _find(
        self,
        video: str | None,
        request: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 -- how Gradio passes it
    ) -> Updates:
        """Finds the people of a video that was chosen."""
        source, visit, hidden = _source(video), self._visit(request), {self.note: gr.HTML(visible=False)}
        if visit.video != source or not visit.wanted:
            return hidden if not visit.video else gr.skip()

        def note(found: Progress | None) -> None:
            if not visit.wanted or visit.video != source or request.session_hash not in self._visits:
                raise _Stopped
            if found is not None:
                progress((found.done, found.total), desc="Finding faces", unit="frames")

        try:
            note(Progress("finding faces", 0, None))
            found = self._found(source, note)
        except _Stopped:  # another video's note stays
            return gr.skip() if visit.wanted else hidden
        visit.wanted = False
        if isinstance(found, str):
            return {**hidden, self._message: parts.message(found)}
        seen = [(one, f" · {seen_s:.1f} s" if seen_s else "") for one, seen_s in found.portraits]
        portraits = [(one, f"{number}{time}") for number, (one, time) in enumerate(seen)]
        sent = self._uploads_of(request)
        voices = sent.voices if sent.video == source else {}
        return {
            self.faces: gr.Gallery(portraits, visible=True, selected_index=None),
            self.each: gr.Checkbox(bool(voices), visible=len(portraits) > 1),
            self.voices: voices,
            self.note: gr.HTML(parts.found(len(portraits), voices or None), visible=True),
        }

    def _found(self, video: str, note: Watch) -> People | str:
        if video not in self._people:
            try:
                found: People | str = self._search.call(find_people, Path(video), self._limits, watch=note)
            except (TooLarge, ChildDied) as error:  # a job may have what it needs
                return f"{error}; a job takes the largest face"
            except LatentSyncError as error:
                found = str(error).replace(video, Path(video).name)
            if len(self._people) >= _MOST_VIDEOS:
                self._people.pop(next(iter(self._people)))
            self._people[video] = found
        return self._people[video]

    def _choose(self, picked: gr.SelectData, each: bool, voices: Voices) -> Updates:
        """Chooses a face; where each has its own recording, shows that."""
        speech = gr.Audio(voices.get(picked.index), label=f"Speech of face {picked.index}")
        shown = {self.speech: speech} if each else {}
        return {self._options["face"]: f"index:{picked.index}", self.chosen: picked.index, **shown}

    def _listen(
        self, video: str | None, speech: str | None, each: bool, chosen: int, voices: Voices, request: gr.Request
    ) -> Updates:
        """Notes a recording, where each face has its own as that of the chosen one."""
        sent, people = self._uploads_of(request), self.people_of(video)
        given = {number: path for number, path in voices.items() if number != chosen} if each else {}
        if each and speech is not None:
            given[chosen] = speech
        sent.speech, sent.voices = speech, given if each or voices else sent.voices  # they may be about to be shown
        label = gr.Audio(label=f"Speech of face {chosen}" if each else "Speech")
        found: Updates = {self.voices: given, self.speech: label}
        if isinstance(people, People):
            found[self.note] = gr.HTML(parts.found(len(people.portraits), given if each else None))
        return found


def _source(video: str | None) -> str:
    """The upload of which a video that the page shows may be the preview; empty without one."""
    return str(original(Path(video))) if video else ""
