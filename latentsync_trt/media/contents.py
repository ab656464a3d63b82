"""What an output consists of besides its picture's parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
from av.container import OutputContainer

from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import FFMPEG_FORMATS
from latentsync_trt.media.recipe import Ingredients
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.media.soundtrack import LOSSLESS_WITH, ChosenSound, choose_sound
from latentsync_trt.media.tags import file_tags, has_keys
from latentsync_trt.types import VideoInfo


@dataclass(frozen=True, slots=True)
class FileExtras:
    """What a file is to hold besides its pictures."""

    sound: tuple[SoundPiece, ...] = ()
    """The pieces whose sum is the sound; none for silence."""
    source: Path | None = None
    """A file whose other audio tracks, subtitles, chapters and tags are kept."""
    source_delay_s: Fraction = Fraction(0)
    """When the first picture of `source` is shown in the output."""
    mark: bool = False
    """Whether the file says that AI changed the picture."""
    ingredients: Ingredients | None = None
    """What the file says it was made of, where it is marked."""
    backup: bool = False
    """Whether a file that it replaces is kept beside it."""
    sign: Callable[[Path], tuple[str, ...]] | None = None
    """Called with the complete file; returns notices."""


NO_EXTRAS = FileExtras()


@dataclass(frozen=True, slots=True)
class Contents:
    """What an output consists of besides its picture's parts."""

    suffix: str
    encoder: VideoEncoder
    info: VideoInfo
    """Properties of the source, for what not every part stores."""
    sound: ChosenSound
    extras: FileExtras
    is_copied: bool = False
    """Whether that is all of an earlier output, of which nothing is cut off any more."""

    @property
    def origin_s(self) -> Fraction:
        """The stamp of the source that is time 0 of the output."""
        return (self.info.start_s or Fraction(0)) - self.extras.source_delay_s

    def read_tags(self) -> dict[str, str]:
        """Returns the tags of the output's file."""
        return file_tags(self.extras.source, self.suffix, mark=self.extras.mark)


def choose_contents(
    suffix: str, encoder: VideoEncoder, info: VideoInfo, extras: FileExtras
) -> Contents:
    """Returns what an output holds; raises as `choose_sound`."""
    sound = ChosenSound(())
    if extras.sound:
        sound = choose_sound(extras.sound, suffix, lossless=encoder.codec in LOSSLESS_WITH)
    return Contents(suffix, encoder, info, sound, extras)


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
    container = av.open(file, "w", format=FFMPEG_FORMATS[suffix], options=options)
    container.metadata.update(tags)
    return container
