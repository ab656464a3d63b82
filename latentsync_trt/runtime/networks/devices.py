"""The networks of one bundle on all GPUs that share a clip, or on the only one."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar, cast

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.cache import Notice
from latentsync_trt.runtime.networks.apart import SubprocessNetworks
from latentsync_trt.runtime.networks.networks import Networks, Notices
from latentsync_trt.runtime.networks.threads import results
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import EngineTime, Float32Array

T = TypeVar("T")

DEVICE_FAILURES = (EngineBuildError, InferenceError, OutOfMemory)
"""Errors after which a device is left out while others work."""

AnyNetworks = Networks | SubprocessNetworks


class Device:
    """One device with its networks. `error`: why it is left out of this run, else empty."""

    def __init__(self, networks: AnyNetworks, position: int) -> None:
        gpu = networks.selection.gpu
        self.name = f"CPU {position}" if gpu is None else f"GPU {gpu.index}"
        self.networks, self.error = networks, ""
        self.on_gpu = gpu is not None

    def run(self, action: Callable[[], T]) -> T:
        if self.error:
            raise InferenceError(self.error)
        self.networks.between_windows()
        return self.networks.run(action)


class Devices:
    """The networks of one bundle on one or several devices, used like those of one.

    `options`: those of the first. With several, notices about one begin with its name.
    """

    def __init__(self, first: Networks, others: Sequence[AnyNetworks] = ()) -> None:
        self.all = tuple(Device(each, position) for position, each in enumerate((first, *others)))
        self.bundle, self.options = first.bundle, first.options
        self.clips: list[object] = []
        """Those that run, the oldest first."""
        self._lock = threading.Lock()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self.notices = first.notices
        if others:
            self.notices = Notices()
            for text in first.take_notices():  # told already
                self.notice(text)
            self.notices.on_notice = first.notices.on_notice
            for device in self.all:
                device.networks.notices.on_notice = lambda text, name=device.name: self.notice(f"{name}: {text}")

    @property
    def in_use(self) -> tuple[Device, ...]:
        """Those that are not left out; never empty."""
        return tuple(device for device in self.all if not device.error)

    @property
    def selection(self) -> Selection:
        return self.in_use[0].networks.selection

    @property
    def windows_per_batch(self) -> int:
        """Windows that every denoiser takes at once: frames do not depend on who paints them."""
        return min(device.networks.windows_per_batch for device in self.in_use)

    @property
    def low_memory(self) -> bool:
        return any(device.networks.low_memory for device in self.in_use)

    def notice(self, text: str) -> None:
        self.notices.add(text)

    def take_notices(self) -> tuple[str, ...]:
        for device in self.all if len(self.all) > 1 else ():
            device.networks.take_notices()
        return self.notices.take()

    def times(self) -> tuple[EngineTime, ...]:
        return tuple(
            replace(time, device=None if (gpu := device.networks.selection.gpu) is None else gpu.index)
            for device in self.all
            for time in device.networks.times()
        )

    def leave_out(self, device: Device, error: Exception) -> bool:
        """Leaves a device out of this run, with a notice; returns False if it is the last one."""
        with self._lock:
            if device.error:
                return True
            if len(self.in_use) == 1:
                return False
            device.error = str(error)
        self.notice(f"{device.name} is left out of this run, others go on: {error}")
        return True

    def ahead(self, action: Callable[[], T]) -> Future[T | None] | None:
        """See `Opened.ahead`, on the first device."""
        return cast(Networks, self.all[0].networks).ahead(action)

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        """On the first device that can."""
        while True:
            device = self.in_use[0]
            try:
                return device.networks.encode_mel(mel)
            except DEVICE_FAILURES as error:
                if not self.leave_out(device, error):
                    raise

    def prepare_ahead(self, graphs: Iterable[str]) -> None:
        """Begins `prepare` in a thread: on GPUs, which take seconds for it, unless engines must be built, for minutes.

        The next call that needs the networks waits for it. Its errors are dropped, as `prepare` meets them again.
        """
        graphs = tuple(graphs)
        if self.all[0].on_gpu and not self.all[0].networks.builds(graphs):
            self._ahead.submit(self._prepare, graphs)

    def _wait_for_ahead(self) -> None:
        if any(each.on_gpu for each in self.all):
            results([self._ahead.submit(int)])  # after all that was submitted before

    def prepare(self, graphs: Iterable[str]) -> None:
        """As `Networks.prepare`, on every device; one that fails is left out."""
        self._wait_for_ahead()
        self._prepare(tuple(graphs))

    def _prepare(self, graphs: tuple[str, ...]) -> None:
        for device in self.all:
            device.error = ""
        # The first GPU of a kind builds, in this thread, which Ctrl-C reaches; others find the engines.
        for device in self.all if len(self.all) > 1 and self.selection.provider.builds else ():
            self._each((device,), lambda networks: networks.builds(graphs) and networks.prepare(graphs))
        self._each(self.in_use, lambda networks: networks.prepare(graphs))
        for device in self.in_use:
            if device.on_gpu and device.networks.selection.gpu is None and not device.networks.building:
                self.leave_out(device, EngineBuildError("only the CPU can run the bundle there"))

    def open_audio(self, graph: str) -> None:
        """Opens the audio encoder alone, on the first device. Raises as `Networks.open`."""
        self._wait_for_ahead()
        self.in_use[0].networks.open((graph,))

    def warm_up(self, graphs: Iterable[str]) -> None:
        """`prepare`, then runs each network once where that did not, and records CUDA graphs, on every device."""
        graphs = tuple(graphs)
        self.prepare(graphs)
        self._each(self.in_use, lambda networks: networks.warm_up(graphs))

    @property
    def building(self) -> bool:
        return any(device.networks.building for device in self.all)

    def wait_for_build(self) -> str:
        """Of several errors, the first."""
        errors = [device.networks.wait_for_build() for device in self.all]
        return next(filter(None, errors), "")

    def close(self) -> None:
        self._ahead.shutdown()
        for device in self.all:
            device.networks.close()

    def _each(self, devices: Sequence[Device], action: Callable[[AnyNetworks], object]) -> None:
        """Runs `action` on each device at once; raises the error of the last one in use."""

        def failure(device: Device) -> LatentSyncError | None:
            try:
                action(device.networks)
            except DEVICE_FAILURES as error:
                return error
            return None

        if len(devices) == 1:  # in this thread, which Ctrl-C reaches
            found = [failure(devices[0])]
        else:
            with ThreadPoolExecutor(len(devices), thread_name_prefix="device") as threads:
                found = list(threads.map(failure, devices))
        for device, error in zip(devices, found, strict=True):
            if error is not None and not self.leave_out(device, error):
                raise error


def networks_on(
    selected: Sequence[Selection],
    bundle: Bundle,
    options: RuntimeOptions,
    *,
    may_fall_back: bool,
    on_notice: Notice | None,
) -> tuple[Networks, list[AnyNetworks], list[str]]:
    """Returns the first device's networks, those of others, which may still open, and why some are left out.

    Raises:
        InputError: the first does not support bundle and `options`.
    """

    def apart(selection: Selection) -> AnyNetworks | Exception:
        own = replace(options, device=selection.device_id)
        try:
            return SubprocessNetworks(bundle, selection, own, may_fall_back=may_fall_back)
        except (LatentSyncError, OSError) as error:  # OSError: no process can be started
            return error

    own = replace(options, device=selected[0].device_id)
    first = Networks(bundle, selected[0], own, may_fall_back=may_fall_back, on_notice=on_notice)
    found = [apart(selection) for selection in selected[1:]]
    others = [each for each in found if not isinstance(each, Exception)]
    return first, others, [f"a GPU is left out: {each}" for each in found if isinstance(each, Exception)]
