"""What an output consists of besides its picture's parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
from av.container import OutputContainer

from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.soundtrack import ChosenSound
from latentsync_trt.media.tags import file_tags, has_keys
from latentsync_trt.types import VideoInfo

_FFMPEG_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}


@dataclass(frozen=True, slots=True)
class Contents:
    """What an output consists of besides its picture's parts."""

    suffix: str
    encoder: VideoEncoder
    info: VideoInfo
    """Properties of the source, for what not every part stores."""
    sound: ChosenSound = ChosenSound(())
    source: Path | None = None
    """The file to take tags and other streams from."""
    origin_s: Fraction = Fraction(0)
    """The stamp of `source` that is time 0 of the output."""
    mark: bool = False
    """Whether the file says that AI changed the picture."""

    def read_tags(self) -> dict[str, str]:
        """Returns the tags of the output's file."""
        return file_tags(self.source, self.suffix, mark=self.mark)


def open_output(
    file: str | BytesIO,
    suffix: str,
    tags: Mapping[str, str],
    movflags: str,
    options: Mapping[str, str],
) -> OutputContainer:
    """Opens a file for output; `movflags` are FFmpeg's for .mp4 and .mov."""
    options = dict(options)
    if suffix != ".mkv":
        options["movflags"] = f"{movflags}+use_metadata_tags" if has_keys(tags) else movflags
    container = av.open(file, "w", format=_FFMPEG_FORMATS[suffix], options=options)
    container.metadata.update(tags)
    return container
