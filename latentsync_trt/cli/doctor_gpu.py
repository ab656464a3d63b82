"""The part of `doctor` that looks at the GPU, its libraries, the providers and their engines."""

from collections.abc import Iterator

from latentsync_trt.cli.findings import Finding, Level
from latentsync_trt.errors import EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.runtime.cache.engine_cache import CACHE_VARIABLE, cache_folder
from latentsync_trt.runtime.cache.prune import survey, total_bytes
from latentsync_trt.runtime.providers import diagnose as diagnosis
from latentsync_trt.runtime.providers import gpu, libraries
from latentsync_trt.runtime.providers import messages as reasons
from latentsync_trt.runtime.providers.select import PREFERENCE

_COMPILER_DISTRIBUTIONS = ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx")
_CHECK_LINE = 'pip install "latentsync-trt[check]"'


def driver() -> Iterator[Finding]:
    """The NVIDIA driver and each GPU."""
    problem, supported = gpu.driver_problem(), gpu.driver_cuda()
    cure = reasons.driver_line(libraries.cuda_major() or libraries.rtx_cuda_major())
    if supported is None:
        yield Finding("gpu", "missing", f"no NVIDIA driver ({problem}): graphs run on the CPU", cure)
        return
    text = f"NVIDIA driver {gpu.driver_version() or 'of unknown version'}, for CUDA up to {_dotted(supported)}"
    if problem is not None:
        yield Finding("gpu", "problem", f"{text}; it does not start ({problem})", "restart the machine; run nvidia-smi")
    elif supported < (libraries.cuda_major() or 0, 0):
        yield Finding("gpu", "problem", f"{text}; this onnxruntime needs CUDA {libraries.cuda_major()}", cure)
    else:
        yield Finding("gpu", "ok", text)
    if problem is None and not gpu.gpus():
        yield Finding("gpu", "missing", "the driver shows no GPU", "run nvidia-smi; look at $CUDA_VISIBLE_DEVICES")
    for device in gpu.gpus():
        free = gpu.free_memory_bytes(device.index)
        memory = f"{_gb(device.memory_bytes)} memory" + ("" if free is None else f", {_gb(free)} free")
        yield Finding("gpu", "ok", f"{device}, {memory}")


def shared_libraries() -> Iterator[Finding]:
    """What onnxruntime was built for, and CUDA, cuDNN, TensorRT and the TensorRT-RTX plug-in."""
    major, version = libraries.cuda_major(), libraries.onnxruntime_version()
    if major is None:
        text = f"onnxruntime {version} is a build without CUDA"
        yield Finding("libraries", "missing", text, reasons.gpu_build_line())
        return
    text = f"onnxruntime {version} is built for CUDA {major} and TensorRT {libraries.tensorrt_major()}"
    yield Finding("libraries", "info", text)
    libraries.preload()
    problems = {file: libraries.load_problem(file) for file in libraries.needed_libraries("cuda")}
    absent = [file for file, problem in problems.items() if problem is not None]
    if absent:
        found = "".join(f"; found CUDA runtime {one.version} ({one.place})" for one in libraries.installed_cuda())
        text = f"CUDA {major}: {', '.join(absent)} not found{found}"
        yield Finding("libraries", "missing", text, reasons.INSTALL_LINES["cuda"])
    else:
        text = f"CUDA {libraries.cuda_version()}, cuDNN {libraries.cudnn_version()}"
        yield Finding("libraries", "ok", text)
    yield from _tensorrt()
    yield _plugin()


def _tensorrt() -> Iterator[Finding]:
    major, version, cure = libraries.tensorrt_major(), libraries.tensorrt_version(), reasons.INSTALL_LINES["tensorrt"]
    if version != libraries.UNKNOWN:
        yield Finding("libraries", "ok", f"TensorRT {version}")
        return
    found = libraries.installed_tensorrt()
    if not found:
        yield Finding("libraries", "missing", f"TensorRT {major} is not installed", cure)
    for one in found:
        what = "the wrong major version" if one.major != major else "found, but it does not load"
        text = f"TensorRT {one.version} ({one.place}): {what}; this onnxruntime loads TensorRT {major}"
        yield Finding("libraries", "missing", text, cure)


def _plugin() -> Finding:
    version = libraries.rtx_version()
    if version == libraries.UNKNOWN:
        return Finding("libraries", "missing", reasons.PLUGIN_ABSENT, reasons.INSTALL_LINES["rtx"])
    return Finding("libraries", "ok", f"TensorRT-RTX plug-in {version}, for CUDA {libraries.rtx_cuda_major()}")


def providers() -> Iterator[Finding]:
    """Each provider, tried on the first GPU, and the one that `--provider auto` takes."""
    chosen = ""
    for name in PREFERENCE:
        obstacle = diagnosis.examine(name)
        if obstacle is None:
            chosen = chosen or name
            yield Finding("providers", "ok", f"{name} runs (a session was made with it)")
        else:
            level: Level = "problem" if name == "cpu" else "missing"
            yield Finding("providers", level, f"{name}: {obstacle.text}", obstacle.cure)
    if chosen:
        yield Finding("providers", "info", f"--provider auto takes {chosen}")


def builder() -> Iterator[Finding]:
    """TensorRT's builder, tried on the first GPU where the provider runs."""
    if diagnosis.examine("tensorrt") is not None:
        return
    try:
        answer = diagnosis.try_builder(gpu.gpus()[0])
    except (EngineBuildError, OutOfMemory) as error:
        yield Finding("engines", "problem", f"TensorRT {libraries.tensorrt_version()} builds no engine", str(error))
        return
    loaded = libraries.tensorrt_version()
    if answer.accepted and not answer.version.startswith(loaded):
        text = f"Python's tensorrt is {answer.version}, but onnxruntime loads TensorRT {loaded}, which takes no other"
        yield Finding("engines", "problem", text, "install one TensorRT, or put its folder first on the loader's path")
    elif answer.accepted:
        text = f"TensorRT {answer.version} builds engines (one of one node, in {answer.seconds:.1f} s)"
        yield Finding("engines", "ok", text, "")
        yield Finding("engines", "info", "latentsync-trt selftest builds and runs whole graphs")
    else:
        text = f"TensorRT {loaded} builds no engine: {answer.reason}"
        yield Finding("engines", "problem", text, reasons.INSTALL_LINES["tensorrt"] + " --force-reinstall")


def engines() -> Iterator[Finding]:
    """The engine cache, and the compiler of `latentsync-trt check`."""
    folder = cache_folder().absolute()
    try:
        items = survey(folder)
    except OutputError as error:
        yield Finding("engines", "problem", str(error), f"name another folder in ${CACHE_VARIABLE}")
    else:
        ready = sum(item.kind == "engine" and item.state == "ready" for item in items)
        yield Finding("engines", "info", f"cache: {folder} ({ready} engines, {_gb(total_bytes(items))})")
        useless = [item for item in items if item.state not in ("ready", "building")]
        if useless:
            text = f"{len(useless)} damaged, replaced or abandoned, {_gb(total_bytes(useless))}"
            yield Finding("engines", "missing", text, "latentsync-trt cache prune --stale")
    version = next((found for name in _COMPILER_DISTRIBUTIONS if (found := libraries.distribution_version(name))), None)
    if version:
        yield Finding("engines", "ok", f"check: TensorRT for RTX {version} compiles without a GPU")
    else:
        yield Finding("engines", "missing", "check: the tensorrt_rtx compiler is not installed", _CHECK_LINE)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
