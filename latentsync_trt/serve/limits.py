"""What the service accepts, and why it refuses."""

from dataclasses import dataclass

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.option_fields import check_limits, option

LIMITS = "Limits"
"""Heading of these options in the help text."""

RETRY_S = 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service accepts. Raises `InputError` for values outside their limits."""

    max_upload_mb: float = option(
        2000.0, "Largest upload, all its files together, and largest file by URL, in MB.", group=LIMITS, minimum=0.001
    )
    max_clip_s: float = option(
        3600.0, "Longest video and recording that are accepted, in seconds.", group=LIMITS, minimum=0.1
    )
    max_queue: int = option(100, "Jobs that may wait; more are refused for the moment.", group=LIMITS, minimum=1)
    keep_hours: float = option(
        24.0, "Hours after their end at which jobs and their files are deleted.", group=LIMITS, minimum=0.0
    )
    allow_urls: bool = option(
        False,
        "Whether jobs may name http, https, s3 and gs addresses, which the service reads with its own rights.",
        group=LIMITS,
    )
    allow_private_urls: bool = option(
        False,
        "With --allow-urls: also http and https addresses in the service's own network, which are refused otherwise.",
        group=LIMITS,
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.allow_private_urls and not self.allow_urls:
            raise InputError("--allow-private-urls: has no effect without --allow-urls; add it")


class UnknownJob(LatentSyncError, LookupError):
    """No job has this id."""


class NotNow(LatentSyncError):
    """The job's state does not allow it."""


class TryLater(LatentSyncError):
    """As many jobs wait as may, or the service stops; the request may come again after `RETRY_S` seconds."""


class TooLarge(InputError):
    """An upload is larger than allowed."""


def check_size(size_bytes: int, limits: Limits) -> None:
    """Raises `TooLarge` if so many bytes are more than an upload may have."""
    if size_bytes > limits.max_upload_mb * 1e6:
        raise TooLarge(
            f"upload: has more than {limits.max_upload_mb:g} MB, which is the most here; send a smaller or shorter "
            "file, or raise --max-upload-mb of the service"
        )
