"""What an engine consists of, from the description that TensorRT's engine inspector gives of it."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

_LARGEST = 10

# Words of the inspector in lower case, each before those that it contains, and what they mean: type, bits of a value.
_TYPES = (
    *(("uint8", "uint8", 8), ("int8", "int8", 8), ("int32", "int32", 32), ("int64", "int64", 64)),
    *(("fp8", "fp8", 8), ("bf16", "bf16", 16), ("bfloat16", "bf16", 16), ("fp16", "fp16", 16), ("half", "fp16", 16)),
    *(("fp32", "fp32", 32), ("float", "fp32", 32), ("bool", "bool", 8)),
)


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A layer of an engine; `moved_bytes`: of its inputs, outputs and weights, as far as the inspector names them."""

    name: str
    kind: str
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """The layers of an engine.

    Args:
        layers: how many, after fusion. kinds: how many of each kind. precisions: how many write each type first.
        formats: how many outputs are in each format, in TensorRT's words: a type, or a type and a memory layout.
        largest: those that read and write most, which is known before they run; how long they take is not.
    """

    layers: int
    kinds: Mapping[str, int]
    precisions: Mapping[str, int]
    formats: Mapping[str, int]
    largest: tuple[LayerSize, ...]


def summarize(path: Path) -> LayerSummary | None:
    """The summary of a description in JSON, with the verbosity "detailed"; None if there is none, or it is no JSON."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        layers = [layer for layer in described["Layers"] if isinstance(layer, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    outputs = [[_format(tensor) for tensor in layer.get("Outputs", ())] for layer in layers]
    sizes = [LayerSize(layer.get("Name", ""), layer.get("LayerType", ""), _moved_bytes(layer)) for layer in layers]
    return LayerSummary(
        layers=len(layers),
        kinds=dict(Counter(size.kind for size in sizes)),
        precisions=dict(Counter(_type(formats[0])[0] for formats in outputs if formats)),
        formats=dict(Counter(chain.from_iterable(outputs))),
        largest=tuple(sorted(sizes, key=lambda size: -size.moved_bytes)[:_LARGEST]),
    )


def _format(tensor: Mapping[str, Any]) -> str:
    return str(tensor.get("Format/Datatype", ""))


def _type(text: str) -> tuple[str, int]:
    """A type and the bits of a value, 0 if the inspector's words are unknown."""
    return next(((name, bits) for sign, name, bits in _TYPES if sign in text.lower()), (text or "unknown", 0))


def _moved_bytes(layer: Mapping[str, Any]) -> int:
    """A variable dimension, which is negative, counts as 1."""
    weights = [layer[name] for name in ("Weights", "Bias") if isinstance(layer.get(name), dict)]
    bits = sum(int(values.get("Count", 0)) * _type(str(values.get("Type", "")))[1] for values in weights)
    for tensor in (*layer.get("Inputs", ()), *layer.get("Outputs", ())):
        bits += math.prod(max(1, int(size)) for size in tensor.get("Dimensions", ())) * _type(_format(tensor))[1]
    return bits // 8
