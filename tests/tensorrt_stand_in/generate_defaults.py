"""Writes `defaults.h`: for each class of TensorRT's interface that the stand-in has, a subclass in
which each function that the stand-in does not have ends the process with its name, instead of
answering something made up.
"""

import re
from pathlib import Path

_CLASSES = (
    *(
        "VTensor",
        "VNetworkDefinition",
        "VOptimizationProfile",
        "VHostMemory",
        "VTimingCache",
        "VBuilderConfig",
    ),
    *(
        "VBuilder",
        "VExecutionContext",
        "VCudaEngine",
        "VRuntime",
        "VLayer",
        "VAttentionBoundaryLayer",
        "VAttention",
    ),
    "VEngineInspector",
)
_FUNCTION = re.compile(
    r"(?:TRT_NODISCARD |TRT_DEPRECATED )?virtual (.+?)\b(\w+)\((.*?)\)( const)?( noexcept)?\s*= 0;",
    re.DOTALL,
)


def defaults(header: str) -> str:
    """The subclasses of the classes in `NvInferImpl.h`."""
    lines = [
        "#pragma once",
        '#include "NvInfer.h"',
        "[[noreturn]] void missing(char const* function);",
    ]
    lines += ["namespace defaults {", "using namespace nvinfer1;"]
    for name in _CLASSES:
        lines.append(f"struct {name} : apiv::{name} {{")
        for result, function, parameters, const, noexcept in _FUNCTION.findall(_body(header, name)):
            flat = " ".join(parameters.split())
            lines.append(
                f"  {result}{function}({flat}){const}{noexcept} "
                f'override {{ missing("{name}::{function}"); }}'
            )
        lines.append("};")
    return "\n".join([*lines, "}  // namespace defaults", ""])


def _body(header: str, name: str) -> str:
    body = header.partition(f"class {name} : public VRoot\n")[2].partition("\n};")[0]
    return re.sub(r"//[^\n]*", "", body)


def write_defaults(include: Path, target: Path) -> None:
    """Reads the header in `include`, writes `target`."""
    target.write_text(
        defaults((include / "NvInferImpl.h").read_text(encoding="utf-8")), encoding="utf-8"
    )
