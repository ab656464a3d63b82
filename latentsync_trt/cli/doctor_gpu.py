"""The part of `doctor` about GPU, libraries, providers and engines. It imports onnxruntime."""

from collections.abc import Iterator

from latentsync_trt.cli.doctor import Finding, Level
from latentsync_trt.errors import EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.runtime.cache.prune import survey, total_bytes
from latentsync_trt.runtime.cache.store import CACHE_VARIABLE, cache_folder
from latentsync_trt.runtime.providers import diagnose, gpu, libraries, messages
from latentsync_trt.runtime.providers.libraries import CUDA_MAJOR, TENSORRT_MAJOR, UNKNOWN
from latentsync_trt.runtime.providers.select import PREFERENCE

_COMPILER_DISTRIBUTION = "tensorrt-rtx-cu13"


def findings() -> Iterator[Finding]:
    """Everything, from the driver to the engine cache."""
    yield from driver()
    yield from shared_libraries()
    runs = []
    for finding in providers():
        yield finding
        runs += [finding.text] if finding.level == "ok" else []
    if any(text.startswith("tensorrt ") for text in runs):
        yield builder()
    yield from engines()


def driver() -> Iterator[Finding]:
    """The NVIDIA driver and each GPU."""
    obstacle, supported = diagnose.driver_obstacle(), gpu.driver_cuda()
    if obstacle is not None:
        yield Finding("gpu", "missing" if supported is None else "problem", obstacle.text, obstacle.cure)
        return
    version = gpu.driver_version() or "of unknown version"
    yield Finding("gpu", "ok", f"NVIDIA driver {version}, supports CUDA up to {'.'.join(map(str, supported or ()))}")
    if not gpu.gpus():
        yield Finding("gpu", "missing", "the driver shows no GPU", "run nvidia-smi; look at $CUDA_VISIBLE_DEVICES")
    for device in gpu.gpus():
        free = gpu.free_memory_bytes(device.index)
        memory = f"{_gb(device.memory_bytes)} memory" + ("" if free is None else f", {_gb(free)} free")
        yield Finding("gpu", "ok", f"{device}, {memory}")


def shared_libraries() -> Iterator[Finding]:
    """What onnxruntime was built for, and CUDA, cuDNN, TensorRT and the TensorRT-RTX plug-in."""
    version, obstacle = libraries.onnxruntime_version(), diagnose.build_obstacle("cuda")
    if obstacle is not None:
        yield Finding("libraries", "missing", obstacle.text, obstacle.cure)
        return
    yield Finding(
        "libraries", "info", f"onnxruntime {version} is built for CUDA {CUDA_MAJOR} and TensorRT {TENSORRT_MAJOR}"
    )
    for name in ("cuda", "tensorrt"):
        obstacle = diagnose.library_obstacle(name)
        if obstacle is not None:
            yield Finding("libraries", "missing", f"{name}: {obstacle.text}", obstacle.cure)
        elif name == "cuda":
            yield Finding("libraries", "ok", f"CUDA {libraries.cuda_version()}, cuDNN {libraries.cudnn_version()}")
        else:
            yield Finding("libraries", "ok", f"TensorRT {libraries.tensorrt_version()}")
    plugin = libraries.rtx_version()
    if plugin == UNKNOWN:
        yield Finding("libraries", "missing", messages.PLUGIN_ABSENT, messages.INSTALL_LINES["rtx"])
    else:
        yield Finding("libraries", "ok", f"TensorRT-RTX plug-in {plugin}")


def providers() -> Iterator[Finding]:
    """Each provider, tried on the first GPU, and the one that `--provider auto` takes."""
    chosen = ""
    for name in PREFERENCE:
        obstacle = diagnose.examine(name)
        if obstacle is None:
            chosen = chosen or name
            yield Finding("providers", "ok", f"{name} runs (a trial session used it)")
        else:
            level: Level = "problem" if name == "cpu" else "missing"
            yield Finding("providers", level, f"{name}: {obstacle.text}", obstacle.cure)
    if chosen:
        yield Finding("providers", "info", f"--provider auto takes {chosen}")


def builder() -> Finding:
    """TensorRT's builder, tried on the first GPU."""
    loaded = libraries.tensorrt_version()
    try:
        answer = diagnose.try_builder(gpu.gpus()[0])
    except (EngineBuildError, OutOfMemory) as error:
        return Finding("engines", "problem", f"TensorRT {loaded} builds no engine", str(error))
    if not answer.accepted:
        cure = messages.INSTALL_LINES["tensorrt"] + " --force-reinstall"
        return Finding("engines", "problem", f"TensorRT {loaded} builds no engine: {answer.reason}", cure)
    if not answer.version.startswith(loaded):
        text = (
            f"Python's tensorrt is {answer.version}, but onnxruntime loads TensorRT {loaded}, which loads only engines "
            "of its own version"
        )
        return Finding("engines", "problem", text, "install one TensorRT, or put its folder first on the loader's path")
    text = f"TensorRT {answer.version} builds engines (one node took {answer.seconds:.1f} s)"
    return Finding("engines", "ok", f"{text}; `latentsync-trt selftest` builds and runs whole graphs")


def engines() -> Iterator[Finding]:
    """The engine cache, and the compiler of `latentsync-trt check`."""
    folder = cache_folder().absolute()
    try:
        items = survey(folder)
    except OutputError as error:
        yield Finding("engines", "problem", str(error), f"name another folder in ${CACHE_VARIABLE}")
    else:
        ready = sum(item.state == "ready" for item in items)
        yield Finding("engines", "info", f"cache: {folder} ({ready} engines, {_gb(total_bytes(items))})")
        useless = [item for item in items if item.state != "ready"]
        if useless:
            text = f"{len(useless)} damaged, {_gb(total_bytes(useless))}"
            yield Finding("engines", "missing", text, "latentsync-trt cache prune --stale")
    version = libraries.distribution_version(_COMPILER_DISTRIBUTION)
    if version:
        yield Finding("engines", "ok", f"check: NVIDIA's compiler for TensorRT-RTX {version}")
    else:
        text = "check: NVIDIA's compiler for TensorRT-RTX is not installed"
        yield Finding("engines", "missing", text, 'pip install "latentsync-trt[check]"')


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
