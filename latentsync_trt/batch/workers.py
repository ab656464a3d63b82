"""Which workers a batch or a service gets: processes for the GPUs of this machine, or actors of a Ray cluster."""

import os
from collections.abc import Callable
from dataclasses import replace

from latentsync_trt.batch.tasks import WorkerHandle, WorkerSettings
from latentsync_trt.runtime.providers.table import CPU


def make_workers(
    settings: WorkerSettings,
    count: int | None = None,
    *,
    most: int | None = None,
    ray: str | None = None,
    gpus_per_worker: float | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> list[WorkerHandle]:
    """Workers that are not started yet; those of this machine share its GPUs and its cores evenly.

    Args:
        settings: their bundle is found here, so that a wrong name is told at once; with `ray`, they name no device.
        count: by default one for each GPU that the settings name, or for the CPU; on a cluster for each GPU it has.
            most: no more than these. ray: address of a cluster, or "auto".

    Raises:
        LatentSyncError: the bundle or a device does not exist, or the cluster cannot be reached.
    """
    from latentsync_trt.remote_files import is_url

    if not is_url(settings.bundle) and settings.bundle != "demo":
        from latentsync_trt.bundle.find import find_bundle

        settings = replace(settings, bundle=str(find_bundle(settings.bundle)[0].absolute()))
    if ray is not None:
        from latentsync_trt.batch.ray_workers import ray_workers

        return list(ray_workers(ray, settings, count, gpus_per_worker, most=most, on_notice=on_notice))
    from latentsync_trt.batch.local import LocalWorker

    devices = _devices(settings, on_notice)
    count = min(count or len(devices), most or count or len(devices))
    threads = settings.threads or (max((os.cpu_count() or 1) // count, 1) if count > 1 else None)
    made: list[WorkerHandle] = []
    for index in range(count):
        device, name = devices[index % len(devices)]
        if count > len(devices):  # several share a device
            name += f".{index // len(devices) + 1}"
        runtime = replace(settings.runtime, device=device)
        made.append(LocalWorker(name, replace(settings, runtime=runtime, threads=threads), on_notice))
    return made


def _devices(settings: WorkerSettings, on_notice: Callable[[str], None]) -> list[tuple[int, str]]:
    """The GPUs to use, by number and name; a single CPU where there is none to use."""
    from latentsync_trt.runtime.providers.gpu import gpus
    from latentsync_trt.runtime.providers.select import device_numbers, select_devices

    numbers = device_numbers(settings.runtime.device)
    on_cpu = settings.provider == CPU.name
    if len(numbers) == 1 or on_cpu:  # the worker itself finds out whether it works
        return [(numbers[0], CPU.name if on_cpu or not gpus() else f"gpu {numbers[0]}")]
    selections, notices = select_devices(settings.provider, settings.runtime.device)
    for notice in notices:
        on_notice(notice)
    return [(each.device_id, f"gpu {each.device_id}" if each.gpu else CPU.name) for each in selections]
