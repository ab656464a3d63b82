"""What a driver and its workers exchange: tasks, settings, results and events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import file_fields, from_texts, from_values, to_texts
from latentsync_trt.types import Progress

ReportValues = dict[str, Any]
"""`asdict` of a `SyncReport`."""


class TaskError(LatentSyncError):
    """The clip failed; message and `usage` are those of the error in the worker."""


class WorkerLost(LatentSyncError):
    """The worker died while it started or ran a task, which may run again."""

    def __init__(self, *args: Any, usage: bool | None = None, crash: str = "") -> None:
        super().__init__(*args, usage=usage)
        self.crash = crash
        """What ended its process, such as "signal 11 (SIGSEGV)"; empty unless that was the
        system.
        """


@dataclass(frozen=True, slots=True)
class Task:
    """A clip to sync. Files, also those in `options`, are paths or URLs."""

    id: str
    """Unique within a ledger."""
    video: str
    audio: str | None
    output: str
    options: SyncOptions = field(default_factory=SyncOptions)
    preview: str | None = None
    """Local path of a JPEG that the worker replaces about once a second while it writes frames."""
    most_s: float | None = None
    """Length of the output at which the task fails."""
    bundle: str | None = None
    """On the worker's machine, instead of the one that its settings name."""
    label: str = ""
    """The client's name of the task."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of its files, by field."""
    redo_of: str = ""
    """The task of whose result this one does a part again, in a copy."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; without what is empty, and of the options what differs from
        their defaults.
        """
        values = dict[str, Any]()
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value or spec.name == "audio":
                values[spec.name] = value
        values["options"] = to_texts(self.options)
        return values

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
        values = dict[str, Any]()
        for name, value in data.items():
            values[name] = from_values(hints[name], value, name, InputError)
        values["options"] = from_texts(SyncOptions, values["options"])
        return cls(**values)

    def with_files(self, change: Callable[[str, bool], str]) -> Self:
        """Replaces every file by what `change` returns for it and for whether it is written;
        outputs come last.
        """
        video = change(self.video, False)
        audio = self.audio and change(self.audio, False)
        options = self.options
        changed = dict[str, Any]()
        if options.turns is None:  # else speakers name labels of the RTTM file
            speakers = [replace(each, voice=change(each.voice, False)) for each in options.speaker]
            changed["speaker"] = tuple(speakers)
        is_written = file_fields(SyncOptions)
        for name in sorted(is_written, key=is_written.__getitem__):
            file = getattr(options, name)
            if file is not None:
                changed[name] = change(str(file), is_written[name])
        output = change(self.output, True)
        options = replace(options, **changed)
        return replace(self, video=video, audio=audio, output=output, options=options)

    def client_names(self) -> dict[str, str]:
        """Returns the client's names of files by the names under which they lie."""
        files: dict[str, Any] = {"video": self.video, "audio": self.audio}
        files |= {f"speaker_{each.face}": each.voice for each in self.options.speaker}
        files |= {name: getattr(self.options, name) for name in file_fields(SyncOptions)}
        names = dict[str, str]()
        for field_name, name in self.names.items():
            if files.get(field_name):
                names[Path(files[field_name]).name] = name
        return names

    def files(self) -> list[tuple[str, bool]]:
        """Returns every file, with whether it is written."""
        files: list[tuple[str, bool]] = []

        def note(file: str, written: bool) -> str:
            files.append((file, written))
            return file

        self.with_files(note)
        return files


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker opens, on one device."""

    bundle: str
    """A path, a name, "demo", or the URL of a folder."""
    provider: str = "auto"
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    scratch: str | None = None
    """Folder for fetched files; by default the system's temporary folder."""
    threads: int | None = None
    """Threads of the CPU; by default the libraries decide."""
    most_bytes: float = inf
    """Memory that a worker of this machine may take for clips."""


WorkerStateName = Literal["starting", "ready", "running", "hangs", "lost", "closed"]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker does from now on."""

    worker: str
    state: WorkerStateName
    detail: str = ""
    """The id of the task that runs; why the worker was lost; why it is closed, empty at the end."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is about to get a task."""

    task_id: str
    worker: str
    attempt: int
    """How often the task has begun with this, 1 at first."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A running task made progress."""

    task_id: str
    worker: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's output is complete."""

    task_id: str
    worker: str
    report: ReportValues


@dataclass(frozen=True, slots=True)
class Failed:
    """A task failed."""

    task_id: str
    worker: str
    message: str
    usage: bool
    again: bool
    """Whether its worker was lost, and it will run once more."""


@dataclass(frozen=True, slots=True)
class CanceledEvent:
    """A task was canceled, waiting or running."""

    task_id: str


Event = WorkerState | Started | Moved | Finished | Failed | CanceledEvent
