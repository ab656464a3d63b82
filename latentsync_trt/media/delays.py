"""When picture and sound of a clip start."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from latentsync_trt.media.audio import first_sample_s
from latentsync_trt.media.files import open_input
from latentsync_trt.media.reader import probe
from latentsync_trt.media.timing import clock_of


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from the start of the output to the first picture and to the first sample; at least one is 0."""

    picture_s: Fraction = Fraction(0)
    sound_s: Fraction = Fraction(0)


def delays_of(video: Path, audio: Path) -> Delays:
    """How much later than the other one picture or sound start: 0 for separate files, which each start at once.

    Raises:
        MediaError: as `probe` and `read_audio_blocks`.
    """
    if not are_one(video, audio):
        return Delays()
    picture_s = probe(video).start_s
    with open_input(audio) as container:
        sound_s, clock = first_sample_s(audio, container), clock_of(container)
    if picture_s is None or sound_s is None:
        return Delays()
    clock.advance(min(picture_s, sound_s), Fraction(0))
    delay_s = clock.advance(max(picture_s, sound_s), Fraction(0))  # not the step where the clock is reset in between
    return Delays(picture_s=delay_s) if picture_s > sound_s else Delays(sound_s=delay_s)


def are_one(video: Path, audio: Path) -> bool:
    """Whether both are the same file."""
    try:
        return video.samefile(audio)
    except OSError:  # the reader says which one is missing
        return False
