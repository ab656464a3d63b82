"""Makes workers: processes for the GPUs of this machine, or actors of a Ray cluster."""

import os
import sys
from dataclasses import dataclass, replace

from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.ray_workers import ray_workers
from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.bundle.machine import machine_bytes
from latentsync_trt.errors import Notices
from latentsync_trt.runtime.providers.table import CPU
from latentsync_trt.types import NoticeCallback

_MEMORY_SHARE = 0.8
"""Share of the machine's memory for all workers; the rest is for the program that serves, and for
checks of files.
"""


def make_workers(
    settings: WorkerSettings,
    count: int | None = None,
    *,
    most: int = sys.maxsize,
    ray: str | None = None,
    on_notice: NoticeCallback = lambda _: None,
) -> list[WorkerHandle]:
    """Returns workers that are not started yet; raises `LatentSyncError` if bundle, device or
    cluster does not exist.

    Args:
        count: of processes, of one clip at a time each. By default one of two clips for each GPU,
            of one clip for the CPU or with little memory; on a cluster one for each GPU that it has
            now, else for each node.
        most: clips at a time.
        ray: address of a cluster, as for `connect`.
    """
    on_notice = Notices(on_notice).add
    if not is_url(settings.bundle) and settings.bundle != "demo":
        from latentsync_trt.bundle.find import find_bundle

        folder, _ = find_bundle(settings.bundle)
        settings = replace(settings, bundle=str(folder.absolute()))
    if ray is None:
        return local_workers(settings, count, most, on_notice)
    return ray_workers(ray, settings, count, most, on_notice)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker of this machine runs."""

    number: int
    name: str
    """For messages: "gpu 1" or "cpu"."""


def local_workers(
    settings: WorkerSettings, count: int | None, most: int, on_notice: NoticeCallback
) -> list[WorkerHandle]:
    """Returns workers of this machine; `count` and `most` as for `make_workers`."""
    devices = _devices(settings, on_notice)
    on_gpu = devices[0].name != CPU.name
    is_pair = count is None and on_gpu and not settings.runtime.low_memory
    count = min(count or len(devices), most)
    threads = None
    if count > 1:
        threads = max((os.cpu_count() or 1) // count, 1)
    settings = replace(
        settings, most_bytes=_MEMORY_SHARE * machine_bytes() / count, threads=threads
    )
    workers = list[WorkerHandle]()
    for index in range(count):
        device = devices[index % len(devices)]
        name = device.name
        if count > len(devices):  # several share a device
            name += f".{index // len(devices) + 1}"
        runtime = replace(settings.runtime, device=device.number)
        at_once = 1
        if is_pair and most > count + index:
            at_once = 2
        on_device = replace(settings, runtime=runtime)
        workers.append(WorkerHandle(name, on_device, on_notice, at_once=at_once))
    return workers


def _devices(settings: WorkerSettings, on_notice: NoticeCallback) -> list[Device]:
    """Returns the GPUs to use; a single CPU where there is none to use."""
    from latentsync_trt.runtime.providers.choice import select_provider
    from latentsync_trt.runtime.providers.devices import device_numbers, gpus

    numbers = device_numbers(settings.runtime.device)
    first = numbers[0]
    if settings.provider == CPU.name or not gpus():
        return [Device(first, CPU.name)]
    if len(numbers) == 1:  # the worker itself finds out whether it works
        return [Device(first, f"gpu {first}")]
    usable = list[Device]()
    for number in numbers:
        selection = select_provider(settings.provider, number)
        if selection.gpu is None:
            reasons = "; ".join(each.reason for each in selection.skipped_providers)
            on_notice(f"GPU {number} is left out: {reasons}")
        else:
            usable.append(Device(number, f"gpu {number}"))
    return usable or [Device(0, CPU.name)]
