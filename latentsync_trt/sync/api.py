"""`LipSync`: an open bundle that syncs clips."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.sync.inpaint import graphs_for
from latentsync_trt.sync.run import Run
from latentsync_trt.types import AudioFeatures, FaceDetector, Float32Array, ProgressCallback, SyncReport


class LipSync:
    """Syncs any number of clips, one at a time, with one bundle and provider; sessions stay open until `close`."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._own_detector: FaceDetector | None = None
        self._one_clip = threading.Lock()

    @classmethod
    def from_bundle(
        cls,
        path: str | Path,
        provider: str = "auto",
        options: RuntimeOptions | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
    ) -> Self:
        """Opens the bundle in folder `path`.

        Args:
            provider: "auto" takes the fastest that can run the bundle; naming "tensorrt", "rtx", "cuda" or "cpu"
                disables fallback.
            options: how engines are built, cached and run.
            on_notice: called from any thread with each of the report's notices as it occurs, e.g. about builds.

        Raises:
            BundleError: damaged, edited, incomplete or too new. ProviderUnavailable: a named provider does not load.
            InputError: `options` do not fit bundle or provider. OutputError: the profile folder is not writable.
        """
        options = options or RuntimeOptions()
        selection = select_provider(provider, options.device)
        bundle = Bundle.load(Path(path))
        return cls(Networks(bundle, selection, options, may_fall_back=provider == "auto", on_notice=on_notice))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> tuple[Path, ...]:
        """Frees all sessions and stops a background build; returns the files of the profile, if any.

        Raises:
            OutputError: the profile cannot be written.
        """
        return self._networks.close()

    def warm_up(self, options: SyncOptions | None = None) -> None:
        """Builds and opens the engines for `options`, and runs each network once. Raises as `sync`."""
        graphs = graphs_for(options or SyncOptions())
        self._networks.prepare(graphs)
        self._networks.warm_up(graphs)

    @property
    def building(self) -> bool:
        """Whether engines are being built in the background."""
        return self._networks.building

    def wait_for_build(self) -> str:
        """Waits for a background build; returns its error, empty if none."""
        return self._networks.wait_for_build()

    def encode_audio(self, path: str | Path) -> AudioFeatures:
        """The encoded speech of a whole recording.

        Raises:
            MediaError: the file has no readable audio. InputError: its samples are not finite numbers.
        """
        return encode_audio(lambda: read_audio_blocks(Path(path)), self._networks.encode_mel)

    def sync(
        self,
        video: str | Path,
        audio: str | Path,
        output: str | Path,
        options: SyncOptions | None = None,
        *,
        detector: FaceDetector | None = None,
        noise: Float32Array | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> SyncReport:
        """Writes `video` to `output` with the lips following `audio`.

        Args:
            detector: finds faces; the built-in one if None. noise: `(1, 4, 1, h, w)` float32, instead of the seed's.
            on_progress: called after every written frame.

        Raises:
            InputError: a file or option cannot be used. NoFaceError: no face in the whole video.
            OutputError: the result cannot be written. InferenceError, EngineBuildError: the provider failed.
            OutOfMemory: even one network alone is too large for the device.
            After any error, no output is left behind.
        """
        with self._one_clip:  # a network may be closed to free memory for another
            run = Run(self._networks, Path(video), Path(audio), Path(output), options or SyncOptions())
            return run.execute(detector or self._detector(), noise, on_progress or (lambda _: None))

    def _detector(self) -> FaceDetector:
        if self._own_detector is None:
            self._own_detector = MediaPipeDetector()
        return self._own_detector
