"""The execution providers, the fastest first: all that the package knows of each. Pure."""

from dataclasses import dataclass
from typing import Literal

from latentsync_trt.bundle.manifest import GraphForm


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider of ONNX Runtime.

    Args:
        name: as in `--provider`. ort_name: as in ONNX Runtime. install: the command that installs it.
        builds: whether it needs engines, which take minutes to build; others open a bundle's graphs directly.
        buffers: where it keeps its inputs and outputs, as in `OrtValue`.
        form: of the graphs that it runs fastest.
        with_cuda: whether ONNX Runtime's own CUDA provider runs wherever it does.
        cuda_graphs: whether it can record CUDA graphs. eight_bits: whether it has 8-bit kernels.
    """

    name: str
    ort_name: str
    install: str = ""
    builds: bool = False
    buffers: Literal["cpu", "cuda"] = "cuda"
    form: GraphForm = "portable"
    with_cuda: bool = False
    cuda_graphs: bool = False
    eight_bits: bool = False


TENSORRT = Provider(
    "tensorrt",
    "TensorrtExecutionProvider",
    'pip install "latentsync-trt[tensorrt]"',
    builds=True,
    with_cuda=True,
    cuda_graphs=True,
    eight_bits=True,
)
RTX = Provider(
    "rtx", "NvTensorRTRTXExecutionProvider", 'pip install "latentsync-trt[rtx]"', builds=True, eight_bits=True
)
CUDA = Provider(
    "cuda",
    "CUDAExecutionProvider",
    'pip install "latentsync-trt[cuda]"',
    form="cuda",
    with_cuda=True,
    cuda_graphs=True,
)
CPU = Provider("cpu", "CPUExecutionProvider", buffers="cpu")

PROVIDERS = {provider.name: provider for provider in (TENSORRT, RTX, CUDA, CPU)}
"""By name, the fastest first."""
