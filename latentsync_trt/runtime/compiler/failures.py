"""Interprets error texts of NVIDIA's libraries and of ONNX Runtime. Pure."""

# As written by ONNX Runtime's arena, the CUDA runtime, cuDNN, cuBLAS, TensorRT, C++ and Python.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "failed to allocate memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "the resource allocation failed",
    "is smaller than requested bytes",
    "could not be allocated",
    "bad allocation",
    "bad_alloc",
    "insufficient memory",
    "memoryerror",
)


def is_out_of_memory(text: str) -> bool:
    """Whether an error text means that the host or the device has too little memory."""
    return any(sign in text.lower() for sign in _OUT_OF_MEMORY)


def last_line(error: Exception) -> str:
    """The useful part of an ONNX Runtime message: its last line that is neither empty nor cuDNN's JSON dump."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("{")]
    return lines[-1] if lines else type(error).__name__
