"""JSON to frozen dataclasses: types, limits (`Annotated[int, msgspec.Meta(ge=1)]`) and required fields are checked."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# At the first use of a type, msgspec 0.22 collects what it knows of it; another thread that uses the type then crashes.
_one_thread = threading.RLock()  # again where a dataclass checks its own fields by `from_values`


def from_json(cls: type[T], data: bytes | str, source: object, error: Callable[[str], Exception] = ValueError) -> T:
    """An instance of the dataclass (or other type) `cls` from JSON text; fields that it does not have are ignored.

    Args:
        source: a file or other name that begins the message. error: what is raised.

    Raises:
        `error`: not JSON, or of another form; the message ends in the place, as in "- at `$.graphs[0].file`".
    """
    import msgspec

    try:
        with _one_thread:
            return msgspec.json.decode(data, type=cls)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise error(f"{source}: {problem}") from problem


def from_values(
    cls: type[T], values: Any, source: object, error: Callable[[str], Exception] = ValueError, *, strict: bool = True
) -> T:
    """As `from_json`, from parsed JSON, or other dicts, lists and plain values; unless `strict`, also "1" as 1."""
    import msgspec

    try:
        with _one_thread:
            return msgspec.convert(values, cls, strict=strict)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise error(f"{source}: {problem}") from problem
