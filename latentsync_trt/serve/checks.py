"""Looks at files, in child processes: small ones may crash what reads them, or need much memory or
time.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any

from latentsync_trt.batch.tasks import Task
from latentsync_trt.child import Child, ChildLost, ChildProcess, MemoryExceeded
from latentsync_trt.child_main import OnProgress
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import Speaker, field_name, file_fields, from_json, from_texts
from latentsync_trt.serve.admission import OUTPUT, PAGE, PREVIEW, SPEAKER, Form, Limits, TooLarge

_LONGEST_LABEL = 200
_WATCH_S = 0.1
"""How often `watch` is called."""
_CALL_BYTES = 1.5e9
"""Memory that a call may take, by default."""
_CALL_S = 120.0
"""Time that a call may take, by default."""
_LARGEST_BYTES = {"turns": 8_000_000, "faces": 64_000_000, "c2pa": 1_000_000}
"""Files that are no media, each with its largest size: 100,000 turns, two hours of a face."""

_MOST_SEARCHED_PIXELS = 6e10
"""Pixels of a video that is searched for faces: 20 minutes of 1920×1080 at 25 frames/s."""
_SEARCH_BESIDE_S = 60.0
"""Time that a search may take in addition to the length of the video."""
_LONGEST_SEARCH_S = 900.0
"""Time that any search may take."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """What a function reports to its `Pool`: how long it may take from now on, in place of the
    limit of all calls.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The order of a child: to call a function that is at the top of a module."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    reports: bool
    """Whether its last argument is a callback for progress."""


def call_function(order: FunctionCall, on_progress: OnProgress) -> Any:
    """Calls a function, in a child of a `Pool`."""
    if order.reports:
        return order.function(*order.arguments, on_progress)
    return order.function(*order.arguments)


class Pool:
    """Calls functions in a few children, one call at a time in each. Thread-safe."""

    def __init__(
        self, task: str, count: int, most_bytes: float = _CALL_BYTES, most_s: float = _CALL_S
    ) -> None:
        """
        Args:
            task: what a call does, for messages.
            count: of children.
            most_bytes, most_s: memory and time that a call may take.
        """
        self._task = task
        self._most_bytes = most_bytes
        self._most_s = most_s
        self._idle = LifoQueue[Child | None]()
        self._closed = False
        for _ in range(count):
            self._idle.put(None)

    def call(
        self, function: Callable[..., Any], *arguments: Any, watch: OnProgress | None = None
    ) -> Any:
        """Returns what `function`, at the top of a module, returns; raises its `LatentSyncError`.

        `watch`: called with what the function passes to its last argument, which it has then,
        except a `TimeLimit`, and with None ten times a second, also while the call waits for a
        child; an error of it ends the call.

        Raises:
            TooLarge: the call takes too much memory or time.
            ChildLost: a child died, and so did the next one.
        """
        order = FunctionCall(function, arguments, watch is not None)
        watch = watch or (lambda _: None)
        with suppress(ChildLost):  # the system may have ended it, as memory was short
            return self._call(order, watch)
        try:
            return self._call(order, watch)
        except ChildLost as error:
            died = f"two processes for it died, at last with {error.ended}"
            raise ChildLost(f"{self._task}: {died}; try again later") from error

    def close(self) -> None:
        """Ends calls, with an error, and children."""
        self._closed = True
        while not self._idle.empty():
            child = self._idle.get()
            if child is not None:
                child.end()

    def _call(self, order: FunctionCall, watch: OnProgress) -> Any:
        child = self._idle_child(watch)
        most_s = self._most_s
        end_s = time.monotonic() + most_s

        def take(value: Any) -> None:
            nonlocal most_s, end_s
            if isinstance(value, TimeLimit):
                most_s = value.seconds
                end_s = time.monotonic() + most_s
            else:
                watch(value)

        def check() -> bool:
            self._ask(watch)
            if time.monotonic() > end_s:
                raise self._too_large(most_s)
            return False

        try:
            if child is None:
                child = Child(ChildProcess(call_function))
            return child.call(order, take, is_canceled=check, most_bytes=self._most_bytes)
        except MemoryExceeded as error:
            raise self._too_large(most_s) from error
        finally:
            if child is not None and (child.is_lost or self._closed):
                child.end()
                child = None
            self._idle.put(child)

    def _idle_child(self, watch: OnProgress) -> Child | None:
        """Waits until another call may run; None where its child is to be started."""
        while True:
            with suppress(Empty):
                return self._idle.get(timeout=_WATCH_S)
            self._ask(watch)

    def _ask(self, watch: OnProgress) -> None:
        watch(None)
        if self._closed:
            raise LatentSyncError(f"{self._task}: broken off, as the program stops")

    def _too_large(self, most_s: float) -> TooLarge:
        most = f"{most_s:g} s or {self._most_bytes / 1e9:.2g} GB of memory, the most here"
        return TooLarge(f"{self._task}: takes more than {most}; send smaller or shorter files")


def check_form(job_id: str, form: Form, folder: Path, limits: Limits) -> Task:
    """Returns the task of a form whose files are in `folder`; raises `InputError`, also as
    `MediaError` and `TooLarge`.
    """
    from latentsync_trt.media.encoder_choice import default_suffix
    from latentsync_trt.sync.inputs import check_inputs

    if "video" not in form.files:
        raise InputError("video: is missing; send the file in the field video")
    for name, most_bytes in _LARGEST_BYTES.items():
        if name in form.files and form.files[name].stat().st_size > most_bytes:
            most = f"{most_bytes / 1e6:g} MB, which is the most here"
            raise TooLarge(f"{name}: has more than {most}; send a smaller one")
    label = form.texts.get("label", "")
    if len(label) > _LONGEST_LABEL:
        raise InputError(f"label: has more than {_LONGEST_LABEL} characters; send a shorter one")
    options = _options(form, folder)
    audio = form.files.get("audio")
    _check_speech_fields(form)
    for name in form.files.keys() - _LARGEST_BYTES:
        check_media(name, form.files[name], limits)
    target = folder / f"{OUTPUT}{default_suffix(options)}"
    check_inputs(form.files["video"], audio, target, options)
    return Task(
        job_id,
        str(form.files["video"]),
        None if audio is None else str(audio),
        str(target),
        options,
        preview=str(folder / PREVIEW),
        most_s=limits.max_clip_s,
        bundle=form.texts.get("bundle"),
        label=label,
        names=form.names,
    )


def check_redo(task: Task) -> None:
    """Raises `InputError`, also as `MediaError`, unless a task can do a part of its output again;
    for a child.
    """
    from latentsync_trt.sync.inputs import check_inputs

    audio = None if task.audio is None else Path(task.audio)
    check_inputs(Path(task.video), audio, Path(task.output), task.options)


def _check_speech_fields(form: Form) -> None:
    """Raises `InputError` unless a form has either speech of all, or of single persons."""
    speakers = [name for name in form.files if SPEAKER.fullmatch(name)]
    has_audio = "audio" in form.files
    if has_audio is bool(speakers):
        problem = f"was sent, and {speakers[0]}, too" if has_audio else "is missing"
        cure = "send either all speech in the field audio, or each person's in speaker_0, speaker_1"
        raise InputError(f"audio: {problem}; {cure}, …")


def _options(form: Form, folder: Path) -> SyncOptions:
    """Returns the options of a form. Files are those that were sent, never names within
    `options`.
    """
    text = form.texts.get("options") or "{}"
    values = from_json(dict[str, Any], text, "options", InputError)
    page = values.pop("report", False)
    if not isinstance(page, bool):
        raise InputError("report: is true for a page with measures and pictures, or false")
    files = dict[str, Any]()
    speakers = list[Speaker]()
    for name, path in form.files.items():
        speaker = SPEAKER.fullmatch(name)
        if speaker is not None:
            speakers.append(Speaker(int(speaker[1]), str(path)))
        elif name in file_fields(SyncOptions):
            files[name] = str(path)
    if speakers:
        files["speaker"] = tuple(sorted(speakers, key=lambda each: each.face))
    for text, value in values.items():
        name = field_name(text)
        is_file = name in file_fields(SyncOptions) or (name == "speaker" and "turns" not in files)
        if is_file and value not in (None, "", []):
            cure = "send the file in a field of that name, recordings in speaker_0, speaker_1, …"
            raise InputError(f"{name}: cannot be named in options; {cure}")
    if page:
        files["report"] = str(folder / PAGE)
    return replace(from_texts(SyncOptions, values), **files, resume=False)


def check_search(video: Path, limits: Limits, on_progress: OnProgress) -> None:
    """Raises as `check_media`, and `TooLarge` for a video that is too large to be searched for
    faces. Reports to the pool how long a search of it may take.
    """
    extent = check_media("video", video, limits)
    if extent.pixels > _MOST_SEARCHED_PIXELS:
        most = f"and {_MOST_SEARCHED_PIXELS:g} are the most here"
        problem = f"its pictures have {extent.pixels:.2g} pixels in all, {most}"
        raise TooLarge(f"search for faces: {problem}; send a smaller or shorter video")
    on_progress(TimeLimit(min(_SEARCH_BESIDE_S + extent.lasts_s, _LONGEST_SEARCH_S)))


def check_media(name: str, path: Path, limits: Limits) -> "Extent":
    """Measures the file of the field `name` by its packets: their stamps and the sum of their
    durations count, whatever the header says. Raises `InputError` if it cannot be read
    (`MediaError`), or is too long.
    """
    from latentsync_trt.media.files import open_input, reading

    extent = Extent()
    with open_input(path) as container:
        streams = [stream for stream in container.streams if stream.type in ("video", "audio")]
        with reading(path):
            for packet in container.demux(streams) if streams else ():
                extent.add(packet)
                if extent.lasts_s > limits.max_clip_s:
                    break
    if extent.lasts_s > limits.max_clip_s:
        cure = "send a shorter one, or raise --max-clip-s of the service"
        most = f"{limits.max_clip_s:g} s, the most here"
        raise InputError(f"{name}: lasts longer than {most}; {cure}")
    return extent


class Extent:
    """What the packets of a media file say about its length and its pictures."""

    def __init__(self) -> None:
        self._first_s = inf
        self._last_s = -inf
        self._played_s = defaultdict[int, float](float)
        """The sum of durations in each stream, as stamps may be missing, or begin again."""
        self._pixels = defaultdict[int, float](float)

    @property
    def lasts_s(self) -> float:
        return max(self._last_s - self._first_s, *self._played_s.values(), 0.0)

    @property
    def pixels(self) -> float:
        """Those of all pictures of the largest video stream."""
        return max(self._pixels.values(), default=0.0)

    def add(self, packet: Any) -> None:
        if packet.pts is not None:
            end = packet.pts + (packet.duration or 0)
            self._first_s = min(self._first_s, float(packet.pts * packet.time_base))
            self._last_s = max(self._last_s, float(end * packet.time_base))
        stream = packet.stream
        rate = getattr(stream, "guessed_rate", None)
        if packet.duration and packet.time_base:
            self._played_s[stream.index] += float(packet.duration * packet.time_base)
        elif rate and packet.size:
            self._played_s[stream.index] += float(1 / rate)
        if packet.size and stream.type == "video":
            # FFmpeg does not know the size of pictures in an unknown codec.
            size = getattr(stream, "width", 0) * getattr(stream, "height", 0)
            self._pixels[stream.index] += size
