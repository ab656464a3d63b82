"""The recordings that lips follow, whose lips follow which, and their encoded speech.

Times are exact seconds. Times of a recording become times of the output by `SoundPiece.at_s`. Speech out of the video's
own file stays where it is there; other recordings begin with the part that is synced. `--offset` moves both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.audio.encoder import SEGMENT_FEATURES, Plan, SpeechStream, joined_segments, public_segments
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, Mixer, read_audio_blocks
from latentsync_trt.media.soundtrack import SoundPiece
from latentsync_trt.paths import local_path
from latentsync_trt.sync.rttm import SpeakerTurns, read_turns
from latentsync_trt.types import Float32Array

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech

_CANCELED_S = 0.1
"""Less needs no notice."""

Listen = Callable[[int, Iterable[Float32Array]], Iterable[Float32Array]]


@dataclass(frozen=True, slots=True)
class SpeechTracks:
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


def speech_tracks_of(audio: Path | None, at_s: Callable[[Path], Fraction], options: SyncOptions) -> SpeechTracks:
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
        return SpeechTracks(tuple(SoundPiece(path, at_s(path)) for path in paths), tuple(numbers))
    recording = SoundPiece(audio, at_s(audio))
    if options.turns is None:
        return SpeechTracks((recording,))
    path = local_path(options.turns, "--turns")
    turns = read_turns(path, recording.at_s)
    if speakers:
        if unknown := [speaker.voice for speaker in speakers if speaker.voice not in turns]:
            raise InputError(f"--speaker …={unknown[0]}: {path} has no such speaker; it has {', '.join(turns)}")
        named = tuple(turns[speaker.voice] for speaker in speakers)
        return SpeechTracks((recording,) * len(named), tuple(numbers), named)
    if len(turns) == 1:
        return SpeechTracks((recording,), None, tuple(turns.values()))
    if options.face != "largest":
        raise InputError(f"--face {options.face}: {path} has several speakers; say whose face is which with --speaker")
    assumed = ", ".join(f"face {face} = {name}" for face, name in enumerate(turns))
    notice = f"{path}: in the order in which they first speak, {assumed}; to change that, give --speaker N=NAME"
    return SpeechTracks((recording,) * len(turns), tuple(range(len(turns))), tuple(turns.values()), notice)


class OpenSpeech:
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
        tracks: SpeechTracks,
        encode_mel: Callable[[Float32Array], Float32Array],
        filters: Float32Array,
        options: SyncOptions,
        listen: Listen = lambda _, blocks: blocks,
    ) -> None:
        def blocks(recording: SoundPiece, speech: "Speech | None", mixers: list[Mixer]) -> Iterable[Float32Array]:
            mixers.append(Mixer("mono", SPEECH_RATE_HZ))
            found: Iterable[Float32Array] = read_audio_blocks(recording.path, mixer=mixers[-1])
            found = found if speech is None else speech.gated(found)
            for speaker, own in enumerate(tracks.recordings):
                found = listen(speaker, found) if own == recording else found
            return found

        self._tracks, self.notices = tracks, list[str]()
        self._streams: dict[SoundPiece, SpeechStream] = {}
        with ExitStack() as opened:
            for recording in dict.fromkeys(tracks.recordings):
                find = cache(partial(speech_in, recording.path))
                speech = find() if options.silence == "closed" else None
                if speech is not None and speech.notice is not None:
                    self.notices.append(f"{recording.path}: {speech.notice}")
                mixers, plan = list[Mixer](), plan_of(options, find)
                stream = SpeechStream(partial(blocks, recording, speech, mixers), encode_mel, filters, plan)
                if (canceled_s := max(mixer.canceled_s for mixer in mixers)) > _CANCELED_S:
                    what = f"its channels cancel each other out in {canceled_s:.1f} s: there"
                    self.notices.append(f"{recording.path}: {what} the lips follow the louder one")
                self._streams[recording] = opened.enter_context(closing(stream))
            self.close = opened.pop_all().close
        self.end_s = max(recording.at_s + stream.duration_s for recording, stream in self._streams.items())

    def windows(self, speaker: int, times_s: Sequence[Fraction]) -> Float32Array:
        """What frames at these times of the output attend to in the speech of `speaker`, float32 `(n, S, D)`."""
        recording = self._tracks.recordings[speaker]
        return self._streams[recording].windows([time_s - recording.at_s for time_s in times_s])


def speech_in(path: Path) -> "Speech":
    """When somebody speaks in a recording; raises as `find_speech` and `read_audio_blocks`."""
    from latentsync_trt.audio.vad import find_speech  # loads onnxruntime

    return find_speech(partial(read_audio_blocks, path))


def plan_of(options: SyncOptions, find_speech: Callable[[], "Speech"]) -> Plan:
    """How recordings are cut; `find_speech` is called only if there is something to cut."""
    if options.audio_segments == "public":
        return public_segments
    return lambda total: joined_segments(total, find_speech().spans_s if total > SEGMENT_FEATURES else ())
