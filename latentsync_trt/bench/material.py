"""A window of aligned faces with its speech, as `sync` cuts them out."""

from collections.abc import Generator, Iterable
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from latentsync_trt.audio.encoder import SpeechStream
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.clips import Clip
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, probe, read_frames
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.jobs import FrameJob
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Float32Array, Frame, UInt8Array


def first_window(clip: Clip, frames: int, networks: Networks, resolution_px: int) -> tuple[UInt8Array, Float32Array]:
    """The first `frames` faces of a clip, uint8 `(F, H, W, 3)`, and their speech, float32 `(F, S, D)`.

    Raises:
        NoFaceError: the clip shows fewer faces than that.
    """
    delays = delays_of(clip.video, clip.audio)
    read = read_frames(clip.video, Playback(Fraction(MODEL_FPS), delay_s=delays.picture_s))
    with closing(aligned_faces(clip.video, read, resolution_px)) as jobs:
        found = (target.face for job in jobs for target in job.targets)
        faces = list(islice((face.image for face in found if face is not None), frames))
    if len(faces) < frames:
        raise NoFaceError(f"{clip.video}: {len(faces)} frames with a face, a window takes {frames}; give a longer clip")
    pieces, filters = partial(read_audio_blocks, clip.audio, delay_s=delays.sound_s), filters_of(networks.bundle)
    with closing(SpeechStream(pieces, networks.encode_mel, filters)) as speech:
        return np.stack(faces), speech.windows([Fraction(index, MODEL_FPS) for index in range(frames)])


def aligned_faces(video: Path, frames: Iterable[Frame], resolution_px: int) -> Generator[FrameJob, None, None]:
    """Frames of a video with their faces, as `sync` cuts them out, at the network's resolution."""
    with MediaPipeDetector() as detector:
        finder = FaceFinder(detector, resolution_px, StageClock(), pixel_aspect=probe(video).sample_aspect_ratio)
        yield from finder.cut_out(finder.find(frame for frame in frames))
