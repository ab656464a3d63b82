"""Opens the recordings of a run, and gives the notices about its inputs."""

from collections.abc import Iterable

from latentsync_trt.audio.mel import filters_of
from latentsync_trt.measure.quality import Quality
from latentsync_trt.media.ending import notices_of_ending
from latentsync_trt.media.playback import notices_of_rate
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.speech import OpenSpeech, asking
from latentsync_trt.types import Float32Array, Progress


def open_speech(run: RunContext, quality: Quality) -> OpenSpeech:
    """Reads the recordings, before anything else, since an engine may take minutes to build."""
    inputs = run.inputs
    sound = inputs.sound
    run.add_notices(run.slot.bundle.manifest.notices_at(run.resolution_px))
    run.add_notices(notices_of_rate(inputs.info, inputs.options))
    run.add_notices(run.slot.selection.notices())
    if sound.notice is not None:
        run.notices.add(sound.notice)
    for path in dict.fromkeys((inputs.video, *sound.files)):
        run.add_notices(notices_of_ending(path))
    run.on_progress(Progress("reading audio", 0, None))

    def listen(speaker: int, blocks: Iterable[Float32Array]) -> Iterable[Float32Array]:
        return asking(run.on_progress.ask, quality.listen(speaker, blocks))

    def encode_mel(mel: Float32Array) -> Float32Array:
        return run.model().audio_encoder(mel)

    with run.clock.measure("encode audio", frames=0):
        filters = filters_of(run.slot.bundle)
        return OpenSpeech(sound, encode_mel, filters, inputs.options, listen, run.speech_in)
