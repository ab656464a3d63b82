"""Turns parsed JSON into dataclasses, checked by their fields' types."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, Any] = {bool: bool, int: int, float: int | float, str: str, NoneType: NoneType}

_hints = cache(get_type_hints)


def parsed(value: Any, hint: Any, name: str = "") -> Any:
    """Parsed JSON as an instance of `hint`: a dataclass, mapping, tuple of any length, union, literal or plain type.

    Raises:
        ValueError: it is none; says where, such as "graphs.vae_encoder.file: 5 is not str".
    """
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return _first(value, arguments, name)
    if kind is tuple and isinstance(value, list):
        return tuple(parsed(item, arguments[0], _joined(name, index)) for index, item in enumerate(value))
    if kind is Mapping and isinstance(value, dict):
        return {key: parsed(item, arguments[1], _joined(name, key)) for key, item in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return _instance(value, hint, name)
    if kind is Literal:
        fits, wanted = value in arguments, " or ".join(map(repr, arguments))
    else:
        fits = hint is Any or _is_plain(value, hint)
        wanted = getattr(hint, "__name__", str(hint))
    if not fits:
        raise ValueError(f"{name}: {value!r:.60} is not {wanted}")
    return value


def _first(value: Any, hints: tuple[Any, ...], name: str) -> Any:
    """`value` as one of `hints`; if it is none, the error is that of the first."""
    for hint in hints[1:]:
        try:
            return parsed(value, hint, name)
        except ValueError:
            continue
    return parsed(value, hints[0], name)


def _instance(value: dict[str, Any], made: Any, name: str) -> Any:
    known = {spec.name: spec.default is MISSING and spec.default_factory is MISSING for spec in fields(made)}
    for field, required in known.items():
        if required and field not in value:
            raise ValueError(f"{_joined(name, field)}: is missing")
    for field in value:
        if field not in known:
            raise ValueError(f"{_joined(name, field)}: is no known field")
    return made(**{field: parsed(item, _hints(made)[field], _joined(name, field)) for field, item in value.items()})


def _is_plain(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):  # to Python, an int, too
        return hint is bool
    return hint in _PLAIN and isinstance(value, _PLAIN[hint])


def _joined(name: str, part: object) -> str:
    return f"{name}.{part}" if name else str(part)
