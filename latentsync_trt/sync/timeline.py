"""A run's speech, when it syncs and how it plays the video, and notices about that. All times are exact seconds."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from functools import partial
from math import ceil
from pathlib import Path

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.vad import Speech, find_speech
from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_FPS, MODEL_RESOLUTION_PX, Extend, Silence, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import audio_duration_s, read_audio_blocks
from latentsync_trt.media.playback import LONGEST_PERIOD_S, Playback, is_held
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.speakers import Span, Voices, span_of
from latentsync_trt.types import Float32Array, Frame, VideoInfo

Listen = Callable[[int, Iterable[Float32Array]], Iterable[Float32Array]]

_EXTENDED: dict[Extend, str] = {
    "pingpong": "goes back and forth",
    "loop": "starts again",
    "hold": "holds its last frame",
}

"""Stretches of a recording that a notice names."""

_SLOW_FPS = 16
"""Below this, lips are seen to move in steps."""


class OpenVoices:
    """The encoded speech of all speakers; open until `close`.

    Args:
        encode_mel, filters: as for `SpeechStream`.
        listen: gets each speaker's number and the blocks of the recording, and passes them on.

    Raises:
        As `SpeechStream` and `read_audio_blocks`.
    """

    def __init__(
        self,
        voices: Voices,
        encode_mel: Callable[[Float32Array], Float32Array],
        filters: Float32Array,
        silence: Silence,
        listen: Listen = lambda _, blocks: blocks,
    ) -> None:
        self._voices = voices
        self.notices: list[str] = []
        self._speech: list[Speech | None] = []
        self._streams: list[SpeechStream] = []
        with ExitStack() as opened:
            for number, recording in enumerate(voices.recordings):
                speech = find_speech(read_audio_blocks(recording.path)) if silence == "closed" else None
                self.notices += notices_of_speech(recording.path, speech)
                self._speech.append(speech)
                opener = partial(self._blocks, number, listen)
                self._streams.append(opened.enter_context(closing(SpeechStream(opener, encode_mel, filters))))
            self._opened = opened.pop_all()
        lasting = zip(voices.recordings, self._streams, strict=True)
        self.end_s = max(piece.at_s + stream.duration_s for piece, stream in lasting)
        """When the last recording ends in the output."""

    def close(self) -> None:
        """Closes the recordings."""
        self._opened.close()

    def windows(self, speaker: int, frames: Sequence[Frame]) -> Float32Array:
        """What `frames` attend to in the speech of `speaker`, float32 `(n, S, D)`."""
        number = self._voices.recording_of(speaker)
        at_s = self._voices.recordings[number].at_s
        return self._streams[number].windows([frame.time_s - at_s for frame in frames])

    def _blocks(self, number: int, listen: Listen) -> Iterable[Float32Array]:
        blocks: Iterable[Float32Array] = read_audio_blocks(self._voices.recordings[number].path)
        speech = self._speech[number]
        blocks = blocks if speech is None else speech.gated(blocks)
        for speaker in range(self._voices.count):
            if self._voices.recording_of(speaker) == number:
                blocks = listen(speaker, blocks)
        return blocks


def timeline_of(inputs: Inputs, voices: OpenVoices) -> tuple[Span, Playback, list[str]]:
    """What is synced, how the video is played, and notices about that.

    Raises:
        InputError: options do not fit the lengths of the files.
    """
    options, notices = inputs.options, list(voices.notices)
    span, mix, end_s = span_of(options, inputs.voices, inputs.video, voices.end_s), inputs.mix, voices.end_s
    if mix is not None:
        end_s = mix.at_s + audio_duration_s(mix.path)
    end_s = end_s if span.end_s is None else min(end_s, span.end_s)
    notices += notices_of_length(inputs.info, end_s, options)
    return span, playback_of(options, inputs.info.duration_s, end_s, inputs.picture_delay_s), notices


def playback_of(
    options: SyncOptions, video_s: Fraction | None, audio_s: Fraction, delay_s: Fraction = Fraction(0)
) -> Playback:
    """How the video is played.

    Args:
        video_s: when the video ends, None if its file does not state that. audio_s: when the speech ends, and the sound
            that is heard. delay_s: when the picture begins.

    Raises:
        InputError: the longer one is wanted, and `video_s` is unknown.
    """
    fps = None if options.fps == "source" else Fraction(options.fps)
    length = options.output_length
    if length == "video":
        return Playback(fps, delay_s=delay_s)
    if length == "shortest":
        return Playback(fps, audio_s, delay_s=delay_s)
    if length == "longest" and video_s is None:
        cure = "use --length audio or video, or write the file anew: ffmpeg -i VIDEO -c copy NEW.mp4"
        raise InputError(f"--length longest: the video's file does not state how long it is; {cure}", usage=False)
    duration_s = audio_s if length == "audio" or video_s is None else max(video_s, audio_s)
    return Playback(fps, duration_s, options.extend, delay_s)


def expected_frames(playback: Playback, info: VideoInfo) -> int | None:
    """About how many frames that gives; None where the file does not state enough."""
    fps = playback.fps or info.frames_per_s
    if fps is not None and fps * LONGEST_PERIOD_S < 1:
        fps = Fraction(MODEL_FPS)
    ends_s = (playback.duration_s, info.duration_s if playback.extend is None else None)
    known_s = [end_s for end_s in ends_s if end_s is not None]
    return ceil(min(known_s) * fps) if known_s and fps else None


def notices_of_model(manifest: Manifest, resolution_px: int) -> list[str]:
    """That the model is the small built-in one, or was trained at another resolution."""
    if manifest.model == DEMO_NAME:
        return [f"the built-in model is {note}" for note in manifest.notes]
    trained_px = MODEL_RESOLUTION_PX.get(manifest.model, resolution_px)
    if trained_px == resolution_px:
        return []
    return [f"model {manifest.model} was trained at {trained_px} px; at {resolution_px} px the mouth may look worse"]


def notices_of_rate(info: VideoInfo, options: SyncOptions) -> list[str]:
    """That the output has another number of frames per second than the video, or too few for lips."""
    rate = info.frames_per_s
    if rate is None or rate == MODEL_FPS:
        return []
    if options.fps != "source":
        return [f"the video has {_short(rate)} frames/s, the output {options.fps} (--fps)"]
    slow = f"the video has {_short(rate)} frames/s, so lips move in steps; --fps {MODEL_FPS} repeats its pictures"
    return [slow] if rate < _SLOW_FPS and rate * LONGEST_PERIOD_S >= 1 else []


def notices_of_length(info: VideoInfo, audio_s: Fraction, options: SyncOptions) -> list[str]:
    """That the picture is extended, or that picture or sound are cut by more than recordings of one device differ.

    Args:
        info: of the video, with the delay of the picture. audio_s: when the sound ends.
    """
    video_s, length, rate = info.duration_s, options.output_length, info.frames_per_s
    still = video_s is not None and rate is not None and video_s * rate <= 1
    if video_s is None or still or is_held(abs(video_s - audio_s)) or length == "shortest":
        return []
    if video_s < audio_s:
        how = "the sound is cut" if length == "video" else f"the picture {_EXTENDED[options.extend]}"
    elif options.start is not None or options.end is not None:
        return []
    else:
        how = "the picture is cut" if length == "audio" else "the rest is silent"
    return [f"the video lasts {_short(video_s)} s, the audio {_short(audio_s)} s: {how} (--length, --extend)"]


def notices_of_speech(recording: Path, speech: Speech | None) -> list[str]:
    """That no one was found to speak; `speech`: None if it was not searched."""
    if speech is None or speech.spans_s:
        return []
    return [f"{recording}: no speech found, so the mouth stays shut; with --silence model it follows any sound"]


def _short(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
