"""Makes workers: processes for the GPUs of this machine, or actors of a Ray cluster."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from latentsync_trt.batch.local import CANCEL_S, HUNG_S, WorkerHandle
from latentsync_trt.batch.ray_workers import RemoteProcess, connect
from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.bundle.machine import machine_bytes
from latentsync_trt.child import Child
from latentsync_trt.errors import Notices
from latentsync_trt.runtime.providers.table import CPU

# of the machine's, for all workers; the rest is for what serves, and for checks of files
_MEMORY_SHARE = 0.8


def make_workers(
    settings: WorkerSettings,
    count: int | None = None,
    *,
    most: int = sys.maxsize,
    ray: str | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> list[WorkerHandle]:
    """Returns workers that are not started yet; raises `LatentSyncError` if bundle, device or
    cluster does not exist.

    Args:
        count: of processes, of one clip at a time each. By default one of two clips for each GPU,
            of one clip for the CPU or with little memory; on a cluster one for each GPU that it has
            now, else for each node.
        most: of clips at a time. ray: address of a cluster, as for `connect`.
    """
    tell = Notices(on_notice).add
    if not is_url(settings.bundle) and settings.bundle != "demo":
        from latentsync_trt.bundle.find import find_bundle

        settings = replace(settings, bundle=str(find_bundle(settings.bundle)[0].absolute()))
    if ray is not None:
        nodes = [node["Resources"] for node in connect(ray).nodes() if node["Alive"]]
        count, gpus, cpus = plan(nodes, settings.provider, count, most)
        provider = settings.provider if gpus else CPU.name
        if provider != settings.provider:
            tell(
                f"Ray cluster {ray}: has no GPU now, so workers "
                "use the CPU; naming a --provider waits for GPUs"
            )
        settings = replace(settings, provider=provider, runtime=replace(settings.runtime, device=0))

        def make() -> Child:
            return Child(RemoteProcess(gpus, cpus, tell), HUNG_S, CANCEL_S)

        return [
            WorkerHandle(f"ray {number}", settings, tell, new_child=make) for number in range(count)
        ]
    devices = _devices(settings, tell)
    pairs = count is None and devices[0][1] != CPU.name and not settings.runtime.low_memory
    count = min(count or len(devices), most)
    threads = max((os.cpu_count() or 1) // count, 1) if count > 1 else None
    settings = replace(
        settings, most_bytes=_MEMORY_SHARE * machine_bytes() / count, threads=threads
    )
    made = list[WorkerHandle]()
    for index in range(count):
        device, name = devices[index % len(devices)]
        if count > len(devices):  # several share a device
            name += f".{index // len(devices) + 1}"
        own = replace(settings, runtime=replace(settings.runtime, device=device))
        made.append(
            WorkerHandle(name, own, tell, at_once=2 if pairs and most >= count + index + 1 else 1)
        )
    return made


def _devices(settings: WorkerSettings, on_notice: Callable[[str], None]) -> list[tuple[int, str]]:
    """Returns the GPUs to use, by number and name; a single CPU where there is none to use."""
    from latentsync_trt.runtime.providers.choice import select_provider
    from latentsync_trt.runtime.providers.devices import device_numbers, gpus

    numbers = device_numbers(settings.runtime.device)
    # the worker itself finds out whether it works
    if len(numbers) == 1 or settings.provider == CPU.name:
        return [
            (
                numbers[0],
                f"gpu {numbers[0]}" if settings.provider != CPU.name and gpus() else CPU.name,
            )
        ]
    selections = {number: select_provider(settings.provider, number) for number in numbers}
    for number, selection in selections.items():
        if selection.gpu is None:
            on_notice(
                f"GPU {number} is left out: "
                f"{'; '.join(skipped.reason for skipped in selection.skipped_providers)}"
            )
    return [(each, f"gpu {each}") for each in numbers if selections[each].gpu is not None] or [
        (0, CPU.name)
    ]


def plan(
    nodes: Sequence[Mapping[str, float]], provider: str, count: int | None, most: int
) -> tuple[int, int, int]:
    """Returns the number of workers for a cluster with these nodes, and the GPUs and CPU cores that
    each reserves: half of those beside a GPU, so that other programs have room.
    """
    if provider == "auto":
        on_gpu = any(node.get("GPU") for node in nodes)
    else:
        on_gpu = provider != CPU.name
    usable = [node for node in nodes if node.get("GPU" if on_gpu else "CPU")]
    places = [int(node["GPU"]) if on_gpu else 1 for node in usable]
    count = min(count or max(sum(places), 1), most)
    if not on_gpu:
        places = [ceil(count / len(usable)) for _ in usable]
    share = min(
        (int(node.get("CPU", 0) // here) for node, here in zip(usable, places, strict=True)),
        default=1,
    )
    return count, int(on_gpu), max(share // 2 if on_gpu else share, 1)
