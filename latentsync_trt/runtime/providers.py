"""Which execution provider runs the graphs, and why a better one does not.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. So a provider counts only
when its library loads and a session made with it really uses it.
"""

import contextlib
import ctypes
import functools
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.runtime.session import last_line

ProviderName = Literal["tensorrt", "cuda", "cpu"]
PREFERENCE: tuple[ProviderName, ...] = ("tensorrt", "cuda", "cpu")
ORT_NAMES: dict[str, str] = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
INSTALL_LINES: dict[str, str] = {
    "tensorrt": 'pip install "latentsync-trt[tensorrt]"',
    "cuda": 'pip install "latentsync-trt[cuda]"',
}

# A one-node ONNX model, y = Identity(x), float32 (1): enough to make a session with.
_IDENTITY_MODEL = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The provider that runs, and the better ones passed over with the reason for each."""

    name: ProviderName
    passed_over: tuple[tuple[str, str], ...] = ()

    @property
    def ort_providers(self) -> list[tuple[str, dict[str, str]]]:
        """What a session is created with; CPU last takes what the first one does not support."""
        names = (
            [self.name] if self.name == "cpu" else [self.name, *(["cuda"] if self.name == "tensorrt" else []), "cpu"]
        )
        return [(ORT_NAMES[name], {}) for name in names]

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where the provider keeps its buffers."""
        return "cpu" if self.name == "cpu" else "cuda"


def select_provider(request: str = "auto") -> Selection:
    """Chooses a provider: "auto" takes the best that loads, a name is a demand.

    Raises:
        ProviderUnavailable: the named provider does not load; the message holds the reason and the cure.
    """
    if request != "auto":
        name = _known(request)
        reason = why_unavailable(name)
        if reason is not None:
            raise ProviderUnavailable(f"{request}: {reason}")
        return Selection(name)
    passed_over: list[tuple[str, str]] = []
    for name in PREFERENCE:
        reason = why_unavailable(name)
        if reason is None:
            return Selection(name, tuple(passed_over))
        passed_over.append((name, reason))
    raise ProviderUnavailable("; ".join(f"{name}: {reason}" for name, reason in passed_over))


def _known(request: str) -> ProviderName:
    for name in PREFERENCE:
        if request == name:
            return name
    raise ProviderUnavailable(f"{request}: not a provider; choose auto, {', '.join(PREFERENCE)}")


def why_unavailable(name: ProviderName) -> str | None:
    """Makes a session with the provider; returns None if it really runs there, else the reason and the cure."""
    ort_name = ORT_NAMES[name]
    if ort_name not in ort.get_available_providers():
        return f"this build of onnxruntime has no {ort_name}; install onnxruntime-gpu"
    if name != "cpu":
        reason = _why_library_fails(name)
        if reason is not None:
            return f"{reason}; {INSTALL_LINES[name]}"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_IDENTITY_MODEL, options, providers=[ort_name], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        return last_line(error)
    if ort_name not in session.get_providers():
        return "the library loads but finds no usable GPU (see nvidia-smi for the driver)"
    return None


@functools.cache
def _preload_pip_libraries() -> None:
    """Makes CUDA and cuDNN from pip visible to the dynamic loader, without the lines onnxruntime prints meanwhile."""
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()


def _why_library_fails(name: ProviderName) -> str | None:
    """Loads the provider's own library, as onnxruntime will, to learn the name of what is missing."""
    _preload_pip_libraries()
    folder = Path(ort.__file__).parent / "capi"
    prefix, suffix = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")
    try:
        ctypes.CDLL(str(folder / f"{prefix}onnxruntime_providers_shared{suffix}"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / f"{prefix}onnxruntime_providers_{name}{suffix}"))
    except OSError as error:
        return str(error).removeprefix(f"{folder}/")
    return None
