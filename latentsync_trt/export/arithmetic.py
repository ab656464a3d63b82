"""PyTorch's arithmetic in another precision than a module's own, without converting the module."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset(
    {
        F.conv1d,
        F.conv2d,
        F.linear,
        F.scaled_dot_product_attention,
        Tensor.matmul,
        Tensor.__matmul__,
        torch.matmul,
    }
)


class InDouble(TorchFunctionMode):
    """Within this context float32 modules compute in float64; parameters are converted one operation at a time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _reads_a_property(func):
            return func(*args, **kwargs or {})
        func = Tensor.double if func is Tensor.float else func
        return _called(func, args, kwargs, lambda tensor: _cast(tensor, torch.float32, torch.float64))


class SumsInSingle(TorchFunctionMode):
    """Within this context products of float16 are summed up in float32 and then rounded, as GPUs do.

    PyTorch's own float16 products on a CPU are up to fifty times slower, and no more exact.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **kwargs or {})
        return _called(func, args, kwargs, lambda tensor: _cast(tensor, torch.float16, torch.float32)).half()


def _reads_a_property(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__get__"


def _cast(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """Tensors of `source`, also in lists, and the type itself, as `target`; anything else unchanged."""
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, source, target) for item in value)
    if isinstance(value, Tensor):
        return value.to(target) if value.dtype == source else value
    return target if value is source else value


def _called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, cast: Callable[[Any], Any]) -> Any:
    return func(*map(cast, args), **{name: cast(value) for name, value in (kwargs or {}).items()})
