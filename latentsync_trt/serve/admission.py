"""What the services accept: limits, and forms of jobs. Knows nothing of HTTP."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import check_limits, option

LIMITS = "Limits"
"""Heading of these options in the help text."""

RETRY_S = 30
"""Time after which a client that was refused may try again."""

OUTPUT = "output"
"""Stem of the video in a job's folder."""
PAGE = "report.html"
"""Page of `report` there."""
UPLOADS = "inputs"
"""Folder of the uploads there."""
PREVIEW = "preview.jpg"
"""The newest frame there."""

SPEAKER = re.compile(r"speaker_(0|[1-9][0-9]{0,2})")
"""A file field with the recording of a face, by its number."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service accepts. Raises `InputError` for values outside their limits."""

    max_upload_mb: float = option(
        2000.0, "Largest upload, all its files together, in MB.", group=LIMITS, minimum=0.001
    )
    max_clip_s: float = option(
        3600.0,
        "Longest video and recording that are accepted, in seconds.",
        group=LIMITS,
        minimum=0.1,
    )
    max_queue: int = option(
        100, "Jobs that may wait; more are refused for the moment.", group=LIMITS, minimum=1
    )
    keep_hours: float = option(
        24.0,
        "Hours after their end at which jobs and their files are deleted.",
        group=LIMITS,
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def most_upload_bytes(self) -> float:
        return self.max_upload_mb * 1e6

    def check_size(self, size_bytes: int) -> None:
        """Raises `TooLarge` if an upload may not have so many bytes."""
        if size_bytes > self.most_upload_bytes:
            most = f"{self.max_upload_mb:g} MB, which is the most here"
            cure = "send a smaller or shorter file, or raise --max-upload-mb of the service"
            raise TooLarge(f"upload: has more than {most}; {cure}")


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """What the live service accepts. Raises `InputError` for values outside their limits."""

    max_sessions: int = option(
        8,
        "Viewers at once, if the GPU can paint for so many; more are refused.",
        group=LIMITS,
        minimum=1,
        maximum=64,
    )
    max_session_s: float = option(
        3600.0, "Seconds after which a session ends.", group=LIMITS, minimum=1.0, maximum=86_400.0
    )
    connect_s: float = option(
        30.0, "Seconds in which a viewer must connect.", group=LIMITS, minimum=1.0, maximum=600.0
    )

    def __post_init__(self) -> None:
        check_limits(self)


class TooLarge(InputError):
    """A file is larger, or takes more memory or time, than allowed."""


class UnknownJob(LatentSyncError, LookupError):
    """No job has this id."""


class NotNow(LatentSyncError):
    """The job's state does not allow it."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a client sent, by field."""

    files: dict[str, Path]
    texts: dict[str, str]
    names: dict[str, str] = field(default_factory=dict)
    """The client's names of the files."""
