"""The process in which `compiler` compiles a graph: the order as JSON on stdin, the verdict as JSON ends stdout."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorrt_rtx as trt

# The parser names the condition that failed: for an operation it knows of and lacks, and for one it never heard of.
_UNSUPPORTED = "false"
_UNKNOWN = "Plugin not found"
# Without a GPU every failure is followed by this one, which is none of the graph's.
_NO_GPU = ("checkMacros.cpp::catchCudaError", "CUDA driver version is insufficient")


class _Log(trt.ILogger):  # type: ignore[misc]
    """Keeps errors, and warnings for when there is no error."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Called by the compiler."""
        if any(sign in message for sign in _NO_GPU):
            return
        if severity <= trt.ILogger.ERROR:
            self.errors.append(message)
        elif severity == trt.ILogger.WARNING:
            self.warnings.append(message)


def main() -> None:
    """Answers one order."""
    order = json.loads(sys.stdin.read())
    answer = compile_order(order["path"], order["profile"], order["target"])
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def compile_order(path: str, profile: Mapping[str, Sequence[Sequence[int]]], target: str) -> dict[str, Any]:
    """Compiles the graph for `target` (e.g. "SM89"); `profile`: least, usual and largest shape by input name.

    Returns:
        The fields of `compiler.GraphVerdict` but its name.
    """
    log = _Log()
    started_s = time.perf_counter()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    engine = None
    if not parser.parse_from_file(path):
        reason = _parser_reason(parser)
    else:
        engine = builder.build_serialized_network(network, _config(builder, profile, target))
        reason = "" if engine is not None else _builder_reason(log)
    return {
        "accepted": engine is not None,
        "reason": reason,
        "layers": 0 if parser.num_errors else network.num_layers,
        "engine_bytes": 0 if engine is None else engine.nbytes,
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _config(builder: Any, profile: Mapping[str, Sequence[Sequence[int]]], target: str) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, target), 0)
    if profile:
        shapes = builder.create_optimization_profile()
        for name, (minimum, optimum, maximum) in profile.items():
            shapes.set_shape(name, minimum, optimum, maximum)
        config.add_optimization_profile(shapes)
    return config


def _parser_reason(parser: Any) -> str:
    """The refused operations, each with its first node and what the parser says of it."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    first = {error.node_operator(): error for error in reversed(errors)}
    return "; ".join(_node_reasons(reversed(first.values()))) or "the parser gives no reason"


def _node_reasons(errors: Iterator[Any]) -> Iterator[str]:
    for error in errors:
        text = _one_line(error.desc())
        operator = error.node_operator()
        if text == _UNSUPPORTED or _UNKNOWN in text:
            text = "TensorRT has no such operation"
        yield f"{operator} (node {error.node_name()}): {text}" if operator else text


def _builder_reason(log: _Log) -> str:
    said = log.errors or log.warnings
    return _one_line(said[0]) if said else "the builder gives no reason"


def _one_line(text: str) -> str:
    """The text without line breaks and without what a missing GPU adds."""
    lines = [line for line in text.splitlines() if not any(sign in line for sign in _NO_GPU)]
    return " ".join(" ".join(lines).split())


if __name__ == "__main__":
    main()
