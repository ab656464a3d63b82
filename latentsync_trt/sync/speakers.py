"""Whose lips follow which recording, when in the output; how the video is played, and what is heard.

Times are exact seconds. Times of a recording become times of the output by `SoundPiece.at_s`. Speech out of the video's
own file stays where it is there; other recordings begin with the part that is synced. `--offset` moves both.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.segments import SEGMENT_FEATURES, Plan, joined_segments, public_segments
from latentsync_trt.bundle.manifest import DEMO_NAME, Manifest
from latentsync_trt.config import MODEL_FPS, MODEL_RESOLUTION_PX, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import audio_duration_s, read_audio_blocks
from latentsync_trt.media.files import check_file
from latentsync_trt.media.playback import HELD_S, LONGEST_PERIOD_S, Playback
from latentsync_trt.media.reader import are_one
from latentsync_trt.media.soundtrack import SoundPiece, spliced
from latentsync_trt.paths import local_path, read_text
from latentsync_trt.types import Float32Array, Frame, VideoInfo

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech
    from latentsync_trt.sync.inputs import Inputs

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the
first sound is heard, and a frame attends to 0.1 s of sound around it."""

_TURN = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"

_EXTENDED = {"pingpong": "goes back and forth", "loop": "starts again", "hold": "holds its last frame"}

_HEARD_S = Fraction(1, 10)
"""Of speech: shorter cuts need no notice."""

_SLOW_FPS = 16
"""Below this, lips are seen to move in steps."""

Listen = Callable[[int, Iterable[Float32Array]], Iterable[Float32Array]]


@dataclass(frozen=True, slots=True)
class SpeakerTurns:
    """When one speaker is painted: starts and ends, ascending and apart."""

    spans_s: tuple[tuple[Fraction, Fraction], ...]

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans_s, time_s, key=itemgetter(0)) - 1
        return position >= 0 and time_s < self.spans_s[position][1]


@dataclass(frozen=True, slots=True)
class Voices:
    """The speakers of a clip.

    `recordings`: of each speaker, perhaps the same. `faces`: the number of each speaker's face, None = the one of
    `--face`. `turns`: when each is painted, in times of the output; None = always. `notice`: what was assumed.
    """

    recordings: tuple[SoundPiece, ...]
    faces: tuple[int, ...] | None = None
    turns: tuple[SpeakerTurns, ...] | None = None
    notice: str | None = None

    @property
    def speaker_of(self) -> Mapping[int, int]:
        return {face: speaker for speaker, face in enumerate(self.faces or ())}

    def speaks(self, speaker: int, time_s: Fraction) -> bool:
        """Whether `speaker` is painted at this time of the output."""
        return self.turns is None or time_s in self.turns[speaker]


def voices_of(audio: Path | None, at_s: Callable[[Path], Fraction], options: SyncOptions) -> Voices:
    """The speakers that arguments and options name.

    Args:
        audio: the recording of `--audio`. at_s: when the first sample of a recording is heard.

    Raises:
        InputError: options that contradict each other or the file of turns, or are missing.
            MediaError: the file of turns cannot be read.
    """
    speakers = options.speaker
    if audio is None and options.turns is not None:
        raise InputError("--turns: needs --audio, the recording whose speakers it names")
    if audio is None and not speakers:
        raise InputError("no speech: give a recording with --audio, or one for each person with --speaker N=FILE")
    if audio is not None and speakers and options.turns is None:
        raise InputError(
            "--audio and --speaker exclude each other: give all recordings with --speaker N=FILE, or say with --turns "
            "who speaks when in --audio"
        )
    numbers = [speaker.face for speaker in speakers]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise InputError(f"--speaker {twice[0]}=…: face {twice[0]} has several voices; give each face one")
    if audio is None:
        paths = [local_path(speaker.voice, f"--speaker {speaker.face}=") for speaker in speakers]
        return Voices(tuple(SoundPiece(path, at_s(path)) for path in paths), tuple(numbers))
    recording = SoundPiece(audio, at_s(audio))
    if options.turns is None:
        return Voices((recording,))
    path = local_path(options.turns, "--turns")
    turns = read_turns(path, recording.at_s)
    if speakers:
        if unknown := [speaker.voice for speaker in speakers if speaker.voice not in turns]:
            raise InputError(f"--speaker …={unknown[0]}: {path} has no such speaker; it has {', '.join(turns)}")
        named = tuple(turns[speaker.voice] for speaker in speakers)
        return Voices((recording,) * len(named), tuple(numbers), named)
    if len(turns) == 1:
        return Voices((recording,), None, tuple(turns.values()))
    if options.face != "largest":
        raise InputError(f"--face {options.face}: {path} has several speakers; say whose face is which with --speaker")
    assumed = ", ".join(f"face {face} = {name}" for face, name in enumerate(turns))
    notice = f"{path}: in the order in which they first speak, {assumed}; to change that, give --speaker N=NAME"
    return Voices((recording,) * len(turns), tuple(range(len(turns))), tuple(turns.values()), notice)


def read_turns(path: Path, at_s: Fraction = Fraction(0)) -> dict[str, SpeakerTurns]:
    """The turns of every speaker, by name, in the order of their first turns, longer by `MARGIN_S` at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types are ignored.

    Args:
        at_s: when the recording begins in the output.

    Raises:
        MediaError: there is no such file. InputError: it is no text, a line is damaged, no line is a turn, or
        several recordings are described.
    """
    check_file(path)
    lines = read_text(path).splitlines()
    turns, recordings = dict[str, list[tuple[Fraction, Fraction]]](), dict[str, None]()
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        try:
            recording, start_s, duration_s, name = fields[1], _seconds(fields[3]), _seconds(fields[4]), fields[7]
        except (ValueError, IndexError):
            where = f"{path}: line {number} is damaged"
            raise InputError(f"{where}: {line.strip()!r} is not {_TURN!r}", usage=False) from None
        recordings[recording] = None
        turns.setdefault(name, []).append((at_s + start_s, at_s + start_s + duration_s))
    if not turns:
        raise InputError(f"{path}: has no line that begins with SPEAKER; give an RTTM file", usage=False)
    if len(recordings) > 1:
        names = ", ".join(recordings)
        raise InputError(f"{path}: describes several recordings ({names}); keep the lines of one", usage=False)
    return {name: _merged(turns[name]) for name in sorted(turns, key=lambda name: min(turns[name]))}


def _seconds(text: str) -> Fraction:
    """Raises `ValueError` for what is no number from 0 on; through float, as 1e999999999 would fill the memory."""
    value = Fraction(repr(float(text)))
    if value < 0:
        raise ValueError(text)
    return value


def _merged(turns: Iterable[tuple[Fraction, Fraction]]) -> SpeakerTurns:
    merged: list[tuple[Fraction, Fraction]] = []
    for turn_start_s, turn_end_s in sorted(turns):
        start_s, end_s = turn_start_s - MARGIN_S, turn_end_s + MARGIN_S
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((start_s, end_s))
    return SpeakerTurns(tuple(merged))


class OpenVoices:
    """The encoded speech of all speakers; open until `close`.

    `notices`: recordings without speech. `end_s`: when the last recording ends in the output.

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
        options: SyncOptions,
        listen: Listen = lambda _, blocks: blocks,
    ) -> None:
        def blocks(recording: SoundPiece, speech: "Speech | None") -> Iterable[Float32Array]:
            found: Iterable[Float32Array] = read_audio_blocks(recording.path)
            found = found if speech is None else speech.gated(found)
            for speaker, own in enumerate(voices.recordings):
                found = listen(speaker, found) if own == recording else found
            return found

        self._voices, self.notices = voices, list[str]()
        self._streams: dict[SoundPiece, SpeechStream] = {}
        with ExitStack() as opened:
            for recording in dict.fromkeys(voices.recordings):
                find = cache(partial(speech_in, recording.path))
                speech = find() if options.silence == "closed" else None
                if speech is not None and not speech.spans_s:
                    cure = "so the mouth stays shut; with --silence model it follows any sound"
                    self.notices.append(f"{recording.path}: no speech found, {cure}")
                stream = SpeechStream(partial(blocks, recording, speech), encode_mel, filters, plan_of(options, find))
                self._streams[recording] = opened.enter_context(closing(stream))
            self.close = opened.pop_all().close
        self.end_s = max(recording.at_s + stream.duration_s for recording, stream in self._streams.items())

    def windows(self, speaker: int, frames: Sequence[Frame]) -> Float32Array:
        """What `frames` attend to in the speech of `speaker`, float32 `(n, S, D)`."""
        recording = self._voices.recordings[speaker]
        return self._streams[recording].windows([frame.time_s - recording.at_s for frame in frames])


def speech_in(path: Path) -> "Speech":
    """When somebody speaks in a recording; raises as `find_speech` and `read_audio_blocks`."""
    from latentsync_trt.audio.vad import find_speech  # loads onnxruntime

    return find_speech(read_audio_blocks(path))


def plan_of(options: SyncOptions, find_speech: Callable[[], "Speech"]) -> Plan:
    """How recordings are cut; `find_speech` is called only if there is something to cut."""
    if options.audio_segments == "public":
        return public_segments
    return lambda total: joined_segments(total, find_speech().spans_s if total > SEGMENT_FEATURES else ())


@dataclass(frozen=True, slots=True)
class Span:
    """What is synced of the output: from `start_s` to `end_s` (None = its end)."""

    start_s: Fraction = Fraction(0)
    end_s: Fraction | None = None

    def __contains__(self, time_s: Fraction) -> bool:
        return self.start_s <= time_s and (self.end_s is None or time_s < self.end_s)


def span_of(options: SyncOptions, voices: Voices, video: Path, speech_end_s: Fraction) -> Span:
    """What `options` say; speech from another file that begins inside the clip also ends there.

    Raises:
        InputError: no speech is in it.
    """
    end_s = options.end
    if end_s is None and options.start is not None and not any(are_one(each.path, video) for each in voices.recordings):
        end_s = speech_end_s
    span = Span(options.start or Fraction(0), end_s)
    starts_s = min(piece.at_s for piece in voices.recordings)
    from_s, to_s = max(span.start_s, starts_s), speech_end_s if end_s is None else min(end_s, speech_end_s)
    if to_s <= from_s:
        spoken = f"the speech goes from {float(starts_s):.2f} to {float(speech_end_s):.2f} s of the output"
        raise InputError(f"no speech in the part that is synced: {spoken}; change --start, --end or --offset")
    return span


def notices_of_cuts(span: Span, voices: Voices, video: Path, speech_end_s: Fraction) -> list[str]:
    """Where `span` cuts speech of another file than the video."""
    starts_s = min(piece.at_s for piece in voices.recordings)
    if any(are_one(each.path, video) for each in voices.recordings):  # which is heard before and after the part
        return []
    before_s, lasts_s = span.start_s - starts_s, speech_end_s - starts_s
    kept_s = min((span.end_s or speech_end_s) - starts_s, lasts_s)
    found = []
    if before_s > _HEARD_S:
        found.append(f"the first {_short(before_s)} s of the speech are cut, before {_short(span.start_s)} s (--start)")
    if lasts_s - kept_s > _HEARD_S:
        of = f"{_short(kept_s)} of its {_short(lasts_s)} s"
        found.append(f"the speech is cut after {of}, at {_short(starts_s + kept_s)} s (--end)")
    return found


def soundtrack_of(voices: Voices, mix: SoundPiece | None, own: SoundPiece | None, span: Span) -> tuple[SoundPiece, ...]:
    """What is heard: the recordings, or `mix` instead, within `span`, around it the video's `own` sound."""
    speech = tuple(dict.fromkeys(voices.recordings)) if mix is None else (mix,)
    if speech == (own,) or span == Span():
        return speech
    return spliced(own, speech, span.start_s, span.end_s)


def timeline_of(inputs: "Inputs", voices: OpenVoices) -> tuple[Span, Playback, list[str]]:
    """What is synced, how the video is played, and notices about that.

    Raises:
        InputError: options do not fit the lengths of the files.
    """
    options, mix, video_s = inputs.options, inputs.mix, inputs.info.duration_s
    span = span_of(options, inputs.voices, inputs.video, voices.end_s)
    end_s = voices.end_s if mix is None else mix.at_s + audio_duration_s(mix.path)
    end_s = end_s if span.end_s is None else min(end_s, span.end_s)
    cuts = notices_of_cuts(span, inputs.voices, inputs.video, voices.end_s)
    notices = [*voices.notices, *cuts, *notices_of_length(inputs.info, end_s, options)]
    length = options.output_length
    if length == "longest" and video_s is None:
        cure = "use --length audio or video, or write the file anew: ffmpeg -i VIDEO -c copy NEW.mp4"
        raise InputError(f"--length longest: the video's file does not state how long it is; {cure}", usage=False)
    return (
        span,
        Playback(
            None if options.fps == "source" else Fraction(options.fps),
            None if length == "video" else max(video_s or end_s, end_s) if length == "longest" else end_s,
            options.extend if length in ("audio", "longest") else None,
            inputs.picture_delay_s,
        ),
        notices,
    )


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
    if video_s is None or still or abs(video_s - audio_s) < HELD_S or length == "shortest":
        return []
    if video_s < audio_s:
        how = "the sound is cut" if length == "video" else f"the picture {_EXTENDED[options.extend]}"
    elif options.start is not None or options.end is not None:
        return []
    else:
        how = "the picture is cut" if length == "audio" else "the rest is silent"
    return [f"the video lasts {_short(video_s)} s, the audio {_short(audio_s)} s: {how} (--length, --extend)"]


def _short(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
