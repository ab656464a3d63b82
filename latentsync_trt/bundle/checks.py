"""Checks what a manifest says: Python does not compare the fields of a dataclass with their types."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from latentsync_trt.bundle.manifest import Manifest

_POSITIVE = ("resolution_px", "frames", "audio_layers", "audio_width", "opset")


def contradictions(manifest: "Manifest") -> Iterator[str]:
    """What a manifest cannot mean, although its fields have their types."""
    for name in _POSITIVE:
        if getattr(manifest, name) < 1:
            yield f"{name}: {getattr(manifest, name)} is not positive"
    for name, span in manifest.ranges.items():
        if not 1 <= span.minimum <= span.optimum <= span.maximum:
            yield f"ranges.{name}: {span} does not ascend from 1"
    for name, graph in manifest.graphs.items():
        for file in (graph.file, graph.weights, *graph.forms.values()):
            if file not in manifest.files:
                yield f"graphs.{name}: {file!r} is not among its files"
        for tensor in (*graph.inputs, *graph.outputs):
            for size in tensor.shape:
                if isinstance(size, str) and size not in manifest.ranges:
                    yield f"graphs.{name}: {tensor.name} has a dimension {size!r} without a range"


def wrong_fields(value: Any, hint: Any, name: str = "") -> Iterator[str]:
    """Where `value` differs from type `hint`, such as "graphs.vae_encoder.file: 5 is not str".

    Knows what JSON contains, and dataclasses, mappings, tuples of any length, unions and literals of it.
    """
    kind, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return
    if kind in (Union, UnionType):
        if all(any(wrong_fields(value, one)) for one in arguments):
            yield _wrong(value, hint, name)
    elif kind is Literal:
        if value not in arguments:
            yield _wrong(value, " or ".join(map(repr, arguments)), name)
    elif kind is tuple and isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from wrong_fields(item, arguments[0], _joined(name, index))
    elif kind is Mapping and isinstance(value, Mapping):
        for key, item in value.items():
            yield from wrong_fields(item, arguments[1], _joined(name, key))
    elif is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type]
        hints = get_type_hints(hint)
        for spec in fields(hint):
            yield from wrong_fields(getattr(value, spec.name), hints[spec.name], _joined(name, spec.name))
    elif not _is_plain(value, hint):
        yield _wrong(value, hint, name)


def _is_plain(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return hint in (int, str, NoneType) and isinstance(value, hint)


def _joined(name: str, part: object) -> str:
    return f"{name}.{part}" if name else str(part)


def _wrong(value: Any, wanted: Any, name: str) -> str:
    return f"{name}: {value!r:.60} is not {getattr(wanted, '__name__', wanted)}"
