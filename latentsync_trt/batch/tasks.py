"""What a driver and its workers exchange: tasks, settings, results and events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import Speaker, file_fields, from_texts, from_values, to_texts
from latentsync_trt.types import Progress


class TaskError(LatentSyncError):
    """The clip failed; message and `usage` are those of the error in the worker."""


class WorkerLost(LatentSyncError):
    """The worker died while it started or ran a task, which may run again.

    `crash`: what ended its process, such as "signal 11 (SIGSEGV)"; empty unless that was the
    system.
    """

    def __init__(self, *args: Any, usage: bool | None = None, crash: str = "") -> None:
        super().__init__(*args, usage=usage)
        self.crash = crash


@dataclass(frozen=True, slots=True)
class Task:
    """A clip to sync. Files, also those in `options`, are paths or URLs. `id` is unique within a
    ledger.

    `preview`: local path of a JPEG that the worker replaces about once a second while it writes
    frames. `most_s`: of output, after which the task fails. `bundle`: on the worker's machine,
    instead of the one that its settings name. `label`, `names`: the client's name of the task, and
    of its files by field.
    """

    id: str
    video: str
    audio: str | None
    output: str
    options: SyncOptions = field(default_factory=SyncOptions)
    preview: str | None = None
    most_s: float | None = None
    bundle: str | None = None
    label: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; without what is empty, and of the options what differs from
        their defaults.
        """
        plain = {spec.name: getattr(self, spec.name) for spec in fields(self)} | {
            "options": to_texts(self.options)
        }
        return {
            name: value for name, value in plain.items() if value or name in ("audio", "options")
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; raises `InputError` for what that cannot have written."""
        hints = get_type_hints(cls) | {"options": dict[str, Any]}
        missing = {"id", "video", "audio", "output", "options"} - data.keys()
        unknown = data.keys() - hints.keys()
        if missing or unknown:
            raise InputError(
                f"task: lacks {sorted(missing)}, and has {sorted(unknown)} of another version"
            )
        values = {
            name: from_values(hints[name], value, name, InputError) for name, value in data.items()
        }
        return cls(**{**values, "options": from_texts(SyncOptions, values["options"])})

    def with_files(self, change: Callable[[str, bool], str]) -> Self:
        """Replaces every file by what `change` returns for it and for whether it is written;
        outputs come last.
        """
        video = change(self.video, False)
        audio = self.audio and change(self.audio, False)
        options = self.options
        changed = dict[str, Any]()
        if options.turns is None:  # else speakers name labels of the RTTM file
            changed["speaker"] = tuple(
                Speaker(each.face, change(each.voice, False)) for each in options.speaker
            )
        for name, written in sorted(file_fields(SyncOptions).items(), key=lambda item: item[1]):
            if (file := getattr(options, name)) is not None:
                changed[name] = change(str(file), written)
        output = change(self.output, True)
        return replace(
            self, video=video, audio=audio, output=output, options=replace(options, **changed)
        )

    def client_names(self) -> dict[str, str]:
        """Returns the client's names of files by the names under which they lie."""
        files: dict[str, Any] = {"video": self.video, "audio": self.audio}
        files |= {f"speaker_{each.face}": each.voice for each in self.options.speaker}
        files |= {name: getattr(self.options, name) for name in file_fields(SyncOptions)}
        return {
            Path(files[field]).name: name for field, name in self.names.items() if files.get(field)
        }

    def files(self) -> list[tuple[str, bool]]:
        """Returns every file, with whether it is written."""
        found: list[tuple[str, bool]] = []

        def note(file: str, written: bool) -> str:
            found.append((file, written))
            return file

        self.with_files(note)
        return found


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker opens: a bundle (path, name, "demo" or the URL of a folder) on one device.

    `scratch`: folder for fetched files, by default the system's temporary folder. `threads`: of the
    CPU. `most_bytes`: of memory that a worker of this machine may take for clips.
    """

    bundle: str
    provider: str = "auto"
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    scratch: str | None = None
    threads: int | None = None
    most_bytes: float = inf


@dataclass(frozen=True, slots=True)
class WorkerState:
    """`detail`: the id of the task that runs; why the worker was lost; why it is closed, empty at
    the end.
    """

    worker: str
    state: Literal["starting", "ready", "running", "hangs", "lost", "closed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is about to get a task, for the `attempt`-th time, counted from 1."""

    task_id: str
    worker: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A running task made progress."""

    task_id: str
    worker: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's output is complete; `report`: `asdict` of its `SyncReport`."""

    task_id: str
    worker: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """A task failed; `again`: its worker was lost, and it will run once more."""

    task_id: str
    worker: str
    message: str
    usage: bool
    again: bool


@dataclass(frozen=True, slots=True)
class CanceledEvent:
    """A task was canceled, waiting or running."""

    task_id: str


Event = WorkerState | Started | Moved | Finished | Failed | CanceledEvent
