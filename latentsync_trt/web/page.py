"""The page: its components, and what happens when they are used."""

import asyncio
import filecmp
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.batch.ledger import OPEN
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.media.demo_clip import SPEECH, demo_clip
from latentsync_trt.serve.admission import PAGE, NotNow, UnknownJob
from latentsync_trt.serve.service import Service
from latentsync_trt.types import Progress
from latentsync_trt.web import jobs, parts
from latentsync_trt.web.jobs import People
from latentsync_trt.web.previews import Previews, original

_POLL_S, _API_POLL_S = 1.0, 0.3
_SWEEP_S = 60
_MOST_JOBS = 20
"""In a browser's history."""
_MOST_VIDEOS, _MOST_BROWSERS = 16, 1000
"""Whose people, and whose uploads, are remembered."""
_STORED = "latentsync-trt"
"""Key of the history in a browser's storage."""
_LARGEST = "largest"

Updates = dict[Any, Any]
Entries = list[tuple[str, str]]
"""A browser's jobs, the newest first: id and name of the video."""
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

    video: str | None = None
    speech: str | None = None
    voices: Voices = field(default_factory=dict)


class Page:
    """The page of a service. `blocks`: its components and events."""

    def __init__(
        self, service: Service, uploads: Path, cookie: str, previews: Previews, bundles: Mapping[str, str]
    ) -> None:
        """Makes the components.

        Args:
            uploads: the folder from which Gradio serves files. cookie: the name of the one that marks a browser.
            bundles: folders by name, first the one that the workers have open.
        """
        self._service, self._uploads, self._cookie = service, uploads, cookie
        self._previews, self._bundles = previews, bundles
        self._visits: dict[str, _Visit] = {}
        self._people: dict[str, People | str] = {}
        """By video: who was found in it, or why no one was."""
        self._sent: dict[str, _Uploads] = {}
        """By browser."""
        self._canceling: set[str] = set()
        kept_s = max(round(service.limits.keep_hours * 3600), _SWEEP_S)
        with gr.Blocks(title="latentsync-trt", analytics_enabled=False, delete_cache=(_SWEEP_S, kept_s)) as self.blocks:
            self._lay_out()
            self._connect()
            _add_api(service, uploads, [self.video, self.speech, self.options[parts.PRESET], self.options["face"]])
        # Else Gradio takes any path of this machine for an upload: it checks pages that it launched itself.
        self.blocks.has_launched = True
        for block in self.blocks.blocks.values():
            if isinstance(block, gr.Video | gr.Audio | gr.File):
                _refuse_addresses(block)

    def close(self) -> None:
        """Ends searches for people."""
        self._visits.clear()

    def _lay_out(self) -> None:
        with gr.Row(elem_id="header"):
            gr.HTML(parts.HEADER)
            names = list(self._bundles)
            self.bundle = gr.Dropdown(
                names, value=names[0], label="Model", elem_id="bundle", filterable=False, interactive=len(names) > 1,
                min_width=260, scale=0,
            )  # fmt: skip
            self.model = gr.HTML(elem_id="model")
        self.demo_note = gr.HTML(
            parts.demo_note(other_face=False), elem_id="demo-note", visible=self._is_demo(names[0])
        )
        with gr.Row(elem_id="main"):
            with gr.Column(scale=5, min_width=320, elem_id="inputs"):
                self._lay_out_inputs()
            with gr.Column(scale=7, min_width=320, elem_id="outputs"):
                self.progress = gr.HTML(parts.EMPTY, elem_id="progress")
                self.result = gr.HTML(elem_id="result", visible=False)
                self.history = gr.Radio([], label="Your jobs", visible=False, elem_id="history")
        gr.Markdown("## Options", elem_id="options")
        with gr.Row(elem_classes="grid"):
            self.options = {parts.PRESET: self.preset, **parts.shown_controls()}
        with gr.Accordion("More options", open=False, elem_id="more"):
            self.options |= parts.folded_controls()
        self.chosen, self.voices = gr.State(0), gr.State({})
        self.entries = gr.BrowserState([], storage_key=_STORED, secret=_STORED)
        self.timer = gr.Timer(_POLL_S, active=False)

    def _lay_out_inputs(self) -> None:
        self.video = gr.Video(
            label="Video, photo or GIF", sources=["upload", "webcam"], elem_id="video", interactive=True
        )
        gr.HTML(parts.TIMELINE, elem_id="timeline")
        self.speech = gr.Audio(
            label="Speech", sources=["upload", "microphone"], type="filepath", buttons=[], elem_id="speech"
        )
        self.demo = gr.Button(parts.DEMO_CLIP, size="sm", elem_id="demo")
        self.people_note = gr.HTML(visible=False, elem_id="people-note")
        self.faces = gr.Gallery(
            label="People", show_label=False, columns=8, height="auto", object_fit="cover", allow_preview=False,
            buttons=[], interactive=False, visible=False, elem_id="faces",
        )  # fmt: skip
        self.each = gr.Checkbox(False, label="Each face has a recording of its own", visible=False, elem_id="each")
        self.preset = parts.preset_control()
        with gr.Row(elem_id="buttons"):
            self.start = gr.Button("Lip-sync", variant="primary", size="lg", elem_id="start")
            self.cancel = gr.Button("Cancel", size="lg", visible=False, elem_id="cancel")
        with gr.Column(visible=False, elem_id="ask") as self.ask:
            gr.HTML(parts.ASK)
            with gr.Row():
                self.instead = gr.Button("Use the built-in clip", size="sm", elem_id="instead")
                self.anyway = gr.Button("Paint it anyway", size="sm", elem_id="anyway")
        self.message = gr.HTML(parts.message(), elem_id="message")

    def _connect(self) -> None:
        hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        many: dict[str, Any] = {**hidden, "concurrency_limit": None}
        soon: dict[str, Any] = {**hidden, "queue": False}
        face = self.options["face"]
        people = [self.people_note, self.faces, self.each, self.voices, self.message]
        fresh = [*people, self.demo_note, self.ask, self.chosen, face, self.options["start"], self.options["end"]]
        for button in (self.demo, self.instead):
            button.click(self._show_demo, None, [self.video, self.speech, self.ask], **hidden)
        chosen = self.video.change(self._forget, [self.video, self.bundle], fresh, trigger_mode="multiple", **soon)
        shown: dict[str, Any] = {"show_progress_on": self.people_note, "api_visibility": "private"}
        chosen.then(self._find, self.video, people, trigger_mode="multiple", concurrency_limit=1, **shown)
        chosen.then(self._show, self.video, self.video, trigger_mode="multiple", **many)
        self.bundle.change(self._warn, [self.video, self.bundle], [self.demo_note, self.ask], **soon)
        self.blocks.unload(self._leave)
        voiced = [self.video, self.speech, self.each, self.chosen, self.voices]
        heard = [self.voices, self.speech, self.people_note]
        self.faces.select(self._choose, voiced, [face, self.chosen, *heard], **soon)
        self.each.change(self._separate, voiced, heard, **soon)
        self.speech.change(self._listen, voiced, [self.voices, self.people_note], trigger_mode="multiple", **soon)
        status = [self.progress, self.result, self.cancel, self.history, self.timer, self.model]
        look = [self.entries, self.history]
        given = [self.video, self.speech, self.each, self.voices, self.bundle, self.entries, *self.options.values()]
        for button, act in ((self.start, self._start), (self.anyway, self._start_anyway)):
            button.click(act, given, [*status, self.entries, self.message, self.ask], **many)
        for event in (self.timer.tick, self.history.input):
            event(self._look, look, status, **soon)
        self.cancel.click(self._cancel, look, status, **soon)
        self.blocks.load(self._look, self.entries, status, **soon)
        self.blocks.load(self._restore, None, [self.video, self.speech], **many)

    def _show_demo(self) -> Updates:
        """Returns the built-in clip and its speech, as uploads."""
        video, speech = self._demo_clip()
        return {self.video: str(video), self.speech: str(speech), self.ask: gr.Column(visible=False)}

    def _demo_clip(self) -> tuple[Path, Path]:
        folder = self._uploads / "demo"
        video, speech = folder / "demo.mp4", folder / SPEECH.name
        if not (video.is_file() and speech.is_file()):  # at first, and when Gradio has deleted them
            folder.mkdir(exist_ok=True)
            demo_clip(folder)
            shutil.copyfile(SPEECH, speech)
        return video, speech

    def _is_demo(self, bundle: str) -> bool:
        return self._bundles[bundle] == str(demo_folder())

    def _is_smear(self, bundle: str, video: str | None) -> bool:
        """Whether the built-in model would paint another face than its own."""
        return (
            self._is_demo(bundle) and video is not None
            and not filecmp.cmp(original(Path(video)), self._demo_clip()[0], shallow=False)
        )  # fmt: skip

    def _warn(self, video: str | None, bundle: str) -> Updates:
        """Says what the built-in model is for, where it is chosen."""
        text = parts.demo_note(other_face=self._is_smear(bundle, video))
        return {self.demo_note: gr.HTML(text, visible=self._is_demo(bundle)), self.ask: gr.Column(visible=False)}

    def _visit(self, request: gr.Request) -> _Visit:
        return self._visits.setdefault(request.session_hash or "", _Visit())

    def _uploads_of(self, request: gr.Request) -> _Uploads:
        if len(self._sent) > _MOST_BROWSERS:
            self._sent.pop(next(iter(self._sent)))
        return self._sent.setdefault(request.cookies.get(self._cookie, ""), _Uploads())

    async def _restore(self, request: gr.Request) -> Updates:
        """Shows the uploads of a browser again."""
        sent, shown = self._uploads_of(request), dict[Any, str]()
        if sent.speech is not None and Path(sent.speech).is_file():
            shown[self.speech] = sent.speech
        if sent.video is not None and Path(sent.video).is_file():
            playable = await asyncio.wrap_future(self._previews.of(Path(sent.video)))
            shown[self.video] = str(playable)
        return shown or gr.skip()

    def _forget(self, video: str | None, bundle: str, request: gr.Request) -> Updates:
        """Ends the search for the people of an earlier video, and forgets who was found."""
        visit, source = self._visit(request), str(original(Path(video))) if video else ""
        if visit.video == source:  # a preview takes its place
            return gr.skip()
        visit.video, visit.wanted = source, bool(source)
        sent = self._uploads_of(request)
        if sent.video != (source or None):
            sent.video, sent.voices = source or None, {}
        return {
            self.people_note: gr.HTML("<p>Finding faces…</p>", visible=video is not None),
            self.faces: gr.Gallery([], visible=False),
            self.each: gr.Checkbox(False, visible=False),
            **dict.fromkeys([self.options["start"], self.options["end"]], ""),
            self.options["face"]: _LARGEST,
            self.chosen: 0,
            self.voices: {},
            self.message: parts.message(),
            **self._warn(video, bundle),
        }

    def _leave(self, request: gr.Request) -> None:
        self._visits.pop(request.session_hash or "", None)

    async def _show(self, video: str | None, request: gr.Request) -> Any:
        """Returns a preview in place of a video that browsers cannot play."""
        if video is None:
            return gr.skip()
        shown = await asyncio.wrap_future(self._previews.of(original(Path(video))))
        still = self._visit(request).video == str(original(Path(video)))
        return str(shown) if still and str(shown) != video else gr.skip()

    def _find(
        self,
        video: str | None,
        request: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 -- how Gradio passes it
    ) -> Updates:
        """Finds the people of a video that was chosen."""
        visit, hidden = self._visit(request), {self.people_note: gr.HTML(visible=False)}
        source = str(original(Path(video))) if video else ""
        if not visit.wanted or visit.video != source:
            return gr.skip() if visit.video else hidden

        def note(found: Progress) -> None:
            if not visit.wanted or visit.video != source or request.session_hash not in self._visits:
                raise _Stopped
            progress((found.done, found.total), desc="Finding faces", unit="frames")

        try:
            note(Progress("finding faces", 0, None))
            found = self._people_of(source, note)
        except _Stopped:  # another video's note stays
            return gr.skip() if visit.wanted else hidden
        visit.wanted = False
        if isinstance(found, str):
            return {**hidden, self.message: parts.message(found)}
        portraits = [(one, f"{number} · {seen_s:.1f} s") for number, (one, seen_s) in enumerate(found.portraits)]
        several, sent = len(portraits) > 1, self._uploads_of(request)
        voices = sent.voices if several and sent.video == source else {}
        return {
            self.faces: gr.Gallery(portraits, visible=True, selected_index=None),
            self.each: gr.Checkbox(bool(voices), visible=several),
            self.voices: voices,
            self.people_note: gr.HTML(parts.found(len(portraits), _names(voices) if voices else None), visible=True),
        }

    def _people_of(self, video: str, note: Any) -> People | str:
        """Returns who was found in a video, or why no one was."""
        if video not in self._people:
            try:
                found: People | str = jobs.find_people(video, self._service.limits, note)
            except LatentSyncError as error:
                found = str(error).replace(video, Path(video).name)
            if len(self._people) >= _MOST_VIDEOS:
                self._people.pop(next(iter(self._people)))
            self._people[video] = found
        return self._people[video]

    def _choose(
        self, chosen: gr.SelectData, video: str | None, _: str | None, each: bool, __: int, voices: Voices
    ) -> Updates:
        """Chooses a face; where each has its own recording, shows that."""
        number = int(chosen.index)
        shown = self._voices_of(video, number, voices) if each else {}
        return {self.options["face"]: f"index:{number}", self.chosen: number, **shown}

    def _separate(
        self, video: str | None, speech: str | None, each: bool, chosen: int, voices: Voices, request: gr.Request
    ) -> Updates:
        """Gives each face its own recording, beginning with that of the chosen one; or one to a single face."""
        if not each:
            self._uploads_of(request).voices = {}
            note = gr.HTML(parts.found(len(self._portraits(video))))
            return {self.voices: {}, self.speech: gr.Audio(label="Speech"), self.people_note: note}
        if not voices and speech is not None:
            voices = {chosen: speech}
        return self._voices_of(video, chosen, voices)

    def _listen(
        self, video: str | None, speech: str | None, each: bool, chosen: int, voices: Voices, request: gr.Request
    ) -> Updates:
        """Notes a recording, where each face has its own as that of the chosen one."""
        sent = self._uploads_of(request)
        sent.speech = speech
        if not each:
            return gr.skip()
        sent.voices = voices = {number: path for number, path in voices.items() if number != chosen}
        if speech is not None:
            voices[chosen] = speech
        return {self.voices: voices, self.people_note: self._voices_of(video, chosen, voices)[self.people_note]}

    def _voices_of(self, video: str | None, chosen: int, voices: Voices) -> Updates:
        note = parts.found(len(self._portraits(video)), _names(voices))
        speech = gr.Audio(voices.get(chosen), label=f"Speech of face {chosen}")
        return {self.voices: voices, self.speech: speech, self.people_note: gr.HTML(note, visible=True)}

    def _portraits(self, video: str | None) -> list[Any]:
        found = self._people.get(str(original(Path(video)))) if video else None
        return found.portraits if isinstance(found, People) else []

    def _start(self, request: gr.Request, *given: Any) -> Updates:
        """Queues a job, but asks before the built-in model paints another face than its own."""
        video, _, _, _, bundle, *_ = given
        if self._is_smear(bundle, video):
            return {self.ask: gr.Column(visible=True), self.message: parts.message()}
        return self._start_anyway(request, *given)

    def _start_anyway(
        self,
        request: gr.Request,
        video: str | None,
        speech: str | None,
        each: bool,
        voices: Voices,
        bundle: str,
        entries: Entries,
        *values: Any,
    ) -> Updates:
        """Queues a job."""
        source = None if video is None else str(original(Path(video)))
        try:
            people = self._people.get(source or "")
            if isinstance(people, str):  # the job would fail for the same reason
                raise InputError(people)
            chosen, files = parts.changed(dict(zip(self.options, values, strict=True)))
            sent: dict[str, str | None] = {"video": source, "audio": speech, **files}
            if each:
                chosen.pop("face", None)
                sent |= {"audio": None, **{f"speaker_{number}": path for number, path in voices.items()}}
            browser = request.cookies.get(self._cookie, "")
            other = None if bundle == next(iter(self._bundles)) else self._bundles[bundle]
            job = jobs.submit(self._service, sent, chosen, people, browser, other)
        except LatentSyncError as error:
            return {self.message: parts.message(str(error)), self.ask: gr.Column(visible=False)}
        self._visit(request).wanted = False
        entries = [(job.id, Path(source or "").name), *entries][:_MOST_JOBS]
        shown = {self.entries: entries, self.message: parts.message(), self.ask: gr.Column(visible=False)}
        return {**shown, **self._look(entries)}

    def _cancel(self, entries: Entries, shown: str) -> Updates:
        with suppress(UnknownJob, NotNow):  # it has just ended
            self._service.cancel(shown)
            self._canceling.add(shown)
        return self._look(entries, shown)

    def _look(self, entries: Entries, shown: str | None = None) -> Updates:
        """Updates the list of the browser's jobs, and shows one of them, by default the newest."""
        service, names, known = self._service, dict(entries), {}
        for job_id in names:
            with suppress(UnknownJob):  # it was deleted
                known[job_id] = jobs.status(service, job_id)
        job = known.get(shown if shown in known else next(iter(known), ""))
        progress, result, has_previews = str(parts.EMPTY), "", True
        if job is not None:
            if job.state not in OPEN:
                self._canceling.discard(job.id)
            problem = service.problem() if job.state == "waiting" else ""
            has_preview, canceling = service.preview(job.id) is not None, job.id in self._canceling
            progress = parts.progress(job, problem, has_preview=has_preview, canceling=canceling)
            if job.state == "done":
                path, name = jobs.download(service, job.id)
                shown_files = [self._previews.of(each) for each in (jobs.source(service, job.id), path)]
                has_previews = all(each.done() for each in shown_files)
                has_page = (service.folder(job.id) / PAGE).is_file()
                result = parts.result(job.id, name, has_page=has_page, has_previews=has_previews)
        labels = [(f"{names[one.id]} · {one.state}", one.id) for one in known.values()]
        # What a user chooses while this is on its way stays chosen.
        choice = {} if shown in known else {"value": job and job.id}
        problem = service.problem()
        busy = bool(problem) or not has_previews or any(one.state in OPEN for one in known.values())
        return {
            self.progress: progress,
            self.result: gr.HTML(result, visible=bool(result)),
            self.cancel: gr.Button(
                visible=job is not None and job.state in OPEN, interactive=not (job and job.id in self._canceling)
            ),
            self.history: gr.Radio(labels, visible=bool(labels), **choice),
            self.timer: gr.Timer(active=busy),
            self.model: parts.model(service.providers(), problem),
        }


def _names(voices: Voices) -> dict[int, str]:
    return {number: Path(path).name for number, path in voices.items()}


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


def _add_api(service: Service, uploads: Path, inputs: list[Any]) -> None:
    """Adds the endpoint `/sync`, for `gradio_client`, to the page that is being made.

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
                    await asyncio.sleep(_API_POLL_S)
            finally:  # the client went away
                with suppress(UnknownJob, NotNow):  # it has ended
                    service.cancel(job.id)
            files = [jobs.download(service, job.id)]
            if given.get("report"):
                files.append((service.page(job.id), PAGE))
            (uploads / job.id).mkdir()
            copies = [str(jobs.copy(path, uploads / job.id / name)) for path, name in files]
            yield copies[0], copies[1] if len(copies) > 1 else None
        except LatentSyncError as error:
            raise gr.Error(str(error), print_exception=False) from error

    given, *found = gr.JSON({}, visible=False), gr.File(visible=False), gr.File(visible=False)
    gr.Button(visible=False).click(sync, [*inputs, given], found, api_name="sync", concurrency_limit=None)
