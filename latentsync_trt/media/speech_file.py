"""What of a file with speech is not heard, or at another time than players have it."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from av import AudioStream

from latentsync_trt.media.audio import first_sample_s
from latentsync_trt.media.files import codec_name, main_audio, open_input
from latentsync_trt.media.reader import first_picture_s

_NOTABLE_LEAD_S = Fraction(1, 10)
"""Seconds by which speech may be late against gestures until that is seen."""


def notices_of_speech_file(path: Path, offset_ms: float = 0) -> Iterator[str]:
    """Yields that a file has other audio tracks than the speech, or sound before its picture, whose
    offset is not that of the output. It is another file than the video.

    Args:
        offset_ms: what the caller has shifted the speech by; where that is not 0, its place is the
            caller's choice.
    """
    with open_input(path) as container:
        tracks = container.streams.audio
        main = main_audio(container)
        if main is not None and len(tracks) > 1:
            yield (
                f"{path}: has {len(tracks)} audio tracks; the speech is {_track_name(main)}, the "
                "others are left out; to take one, copy it: "
                "ffmpeg -i OLD -map 0:INDEX -c copy NEW.mkv"
            )
    if offset_ms:
        return
    picture_s = first_picture_s(path)
    sound_s = first_sample_s(path)
    if picture_s is None or sound_s is None or picture_s - sound_s < _NOTABLE_LEAD_S:
        return
    lead_s = float(picture_s - sound_s)
    yield (
        f"{path}: its sound begins {lead_s:.2f} s before its picture, here with the picture; "
        f"to keep their offset, cut that off the speech: --offset -{1000 * lead_s:.0f}"
    )


def _track_name(track: AudioStream) -> str:
    """Returns the number of a track, and what is known of it."""
    title = track.metadata.get("title") or track.metadata.get("name")  # MP4 has a name
    language = "" if track.language == "und" else track.language
    words = [word for word in (codec_name(track), language, title) if word]
    return f"track {track.index} ({', '.join(words)})"
