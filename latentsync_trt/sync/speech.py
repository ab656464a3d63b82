"""The encoded speech of a clip's recordings, and when somebody speaks in them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from latentsync_trt.audio.encoder import (
    AudioFeatures,
    Plan,
    SpeechStream,
    encode_audio,
    segment_plan,
)
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import AudioSegments, SyncOptions
from latentsync_trt.media.audio import SPEECH_RATE_HZ, read_audio_blocks
from latentsync_trt.media.mixer import Mixer
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.sync.sound import Sound
from latentsync_trt.types import Float32Array

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech

T = TypeVar("T")

FindSpeech = Callable[[Path], "Speech"]
"""Returns when somebody speaks in a recording."""

Listen = Callable[[SoundPiece, Iterable[Float32Array]], Iterable[Float32Array]]

_NOTABLE_S = 0.1
"""Seconds of lost sound from which a notice says so."""


def asking(ask: Callable[[], object], items: Iterable[T]) -> Iterator[T]:
    """Yields the same items; calls `ask`, which may raise, before each."""
    for item in items:
        ask()
        yield item


def speech_in(path: Path, ask: Callable[[], object] = lambda: None) -> "Speech":
    """Returns when somebody speaks in a recording; `ask` is called with each second of it.

    Raises as `find_speech` and `read_audio_blocks`.
    """
    from latentsync_trt.audio.vad import find_speech  # loads onnxruntime

    return find_speech(lambda: asking(ask, read_audio_blocks(path)))


def encode_recording(
    path: Path,
    segments: AudioSegments,
    encode_mel: Callable[[Float32Array], Float32Array],
    bundle: Bundle,
) -> AudioFeatures:
    """Returns the features of a whole recording, also of its silence; raises as `OpenSpeech`."""
    plan = _segments_plan(segments, partial(speech_in, path))
    return encode_audio(partial(read_audio_blocks, path), encode_mel, filters_of(bundle), plan)


class OpenSpeech:
    """The encoded speech of all speakers; open until `close`.

    Raises as `SpeechStream` and `read_audio_blocks`.

    Args:
        encode_mel, filters: as for `SpeechStream`.
        listen: gets each recording and its blocks, and passes these on.
        find_speech: as `speech_in`.
    """

    def __init__(
        self,
        sound: Sound,
        encode_mel: Callable[[Float32Array], Float32Array],
        filters: Float32Array,
        options: SyncOptions,
        listen: Listen = lambda _, blocks: blocks,
        find_speech: FindSpeech = speech_in,
    ) -> None:
        self._recordings = sound.recordings
        self._streams = dict[SoundPiece, SpeechStream]()
        self.notices = list[str]()
        """Recordings without speech, and channels of which something is lost."""

        with ExitStack() as opened:
            for piece in dict.fromkeys(sound.recordings):
                find = cache(partial(find_speech, piece.path))
                silenced = find() if options.silence == "closed" else None
                reader = _Reader(piece.path, silenced, partial(listen, piece))
                plan = _segments_plan(options.audio_segments, find)
                stream = SpeechStream(reader.blocks, encode_mel, filters, plan)
                self._streams[piece] = opened.enter_context(closing(stream))
                self.notices += reader.notices()
            self._opened = opened.pop_all()
        ends_s = [piece.at_s + stream.duration_s for piece, stream in self._streams.items()]
        self.end_s = max(ends_s)
        """When the last recording ends in the output."""

    def close(self) -> None:
        self._opened.close()

    def windows(self, speaker: int, times_s: Sequence[Fraction]) -> Float32Array:
        """Returns what frames at these times of the output attend to in the speech of `speaker`,
        float32 `(n, S, D)`.
        """
        recording = self._recordings[speaker]
        return self._streams[recording].windows([time_s - recording.at_s for time_s in times_s])


def _segments_plan(segments: AudioSegments, find: "Callable[[], Speech]") -> Plan:
    """Returns how a recording is cut; speech is found only if a pause is needed."""
    return segment_plan(segments, lambda: find().spans_s)


class _Reader:
    """Reads a recording from its beginning as often as `blocks` is called.

    `speech`: where no one speaks, the recording becomes silent; None leaves it as it is.
    """

    def __init__(
        self,
        path: Path,
        speech: "Speech | None",
        listen: Callable[[Iterable[Float32Array]], Iterable[Float32Array]],
    ) -> None:
        self._path = path
        self._speech = speech
        self._listen = listen
        self._mixers = list[Mixer]()

    def blocks(self) -> Iterable[Float32Array]:
        mixer = Mixer("mono", SPEECH_RATE_HZ)
        self._mixers.append(mixer)
        blocks: Iterable[Float32Array] = read_audio_blocks(self._path, mixer=mixer)
        if self._speech is not None:
            blocks = self._speech.gated(blocks)
        return self._listen(blocks)

    def notices(self) -> Iterator[str]:
        """Yields what is unusual about what has been read so far."""
        if self._speech is not None and self._speech.notice is not None:
            yield f"{self._path}: {self._speech.notice}"
        canceled_s = max(mixer.canceled_s for mixer in self._mixers)
        if canceled_s > _NOTABLE_S:
            yield (
                f"{self._path}: its channels cancel each other out in {canceled_s:.1f} s: there "
                "the lips follow the louder one"
            )
        if max(mixer.low_s for mixer in self._mixers) > _NOTABLE_S:
            yield (
                f"{self._path}: has sound only in its low-frequency channel (LFE), which many "
                "players leave out; the lips follow it; name the channel anew to hear it"
            )
