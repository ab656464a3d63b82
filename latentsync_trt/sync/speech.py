"""The encoded speech of all speakers of a clip."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.vad import Speech, find_speech
from latentsync_trt.config import Silence
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.sync.notices import notices_of_speech
from latentsync_trt.sync.speakers import Voices
from latentsync_trt.types import Float32Array, Frame

Listen = Callable[[int, Iterable[Float32Array]], Iterable[Float32Array]]


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
        self._streams: list[SpeechStream] = []
        with ExitStack() as opened:
            for number, recording in enumerate(voices.recordings):
                speech = find_speech(read_audio_blocks(recording.path)) if silence == "closed" else None
                self.notices += notices_of_speech(recording.path, speech)
                opener = _opener(voices, number, speech, listen)
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


def _opener(voices: Voices, number: int, speech: Speech | None, listen: Listen) -> Callable[[], Iterable[Float32Array]]:
    path = voices.recordings[number].path

    def pieces() -> Iterable[Float32Array]:
        read = read_audio_blocks(path)
        blocks: Iterable[Float32Array] = read if speech is None else speech.gated(read)
        for speaker in range(voices.count):
            if voices.recording_of(speaker) == number:
                blocks = listen(speaker, blocks)
        return blocks

    return pieces
