"""How published checkpoints store a network's parameters (names, stacking, transposition)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from latentsync_trt.export.layers import Linear


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one parameter.

    `names`: the checkpoint's tensors that are stacked along its outputs; None stands for zeros. `shape`: of each of
    them. `transposed`: the checkpoint stores `(out, in)`, the network `(in, out)`.
    """

    names: tuple[str | None, ...]
    shape: tuple[int, ...]
    transposed: bool = False

    def gather(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Builds the network's parameter from the checkpoint's tensors."""
        parts = [torch.zeros(self.shape) if name is None else tensors[name] for name in self.names]
        parts = [part.to(dtype) for part in parts]
        if self.transposed:
            return torch.cat([part.flatten(1).t() for part in parts], 1)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def origins(network: nn.Module, prefix: str = "") -> dict[str, Origin]:
    """Parameter and buffer names of `network` → their origins; `prefix` precedes every name in the checkpoint."""
    found = {name: Origin((prefix + name,), tuple(tensor.shape)) for name, tensor in network.state_dict().items()}
    for path, module in network.named_modules():
        if isinstance(module, Linear):
            found.update(_linear_origins(path, module, prefix))
    return found


def _linear_origins(path: str, module: Linear, prefix: str) -> Iterator[tuple[str, Origin]]:
    parent, _, own = path.rpartition(".")
    stems = module.sources or (own,)
    inputs, outputs = module.weight.shape
    paths = {stem: f"{prefix}{parent}.{stem}" if parent else f"{prefix}{stem}" for stem in stems}
    width = outputs // len(stems)
    weights = tuple(f"{paths[stem]}.weight" for stem in stems)
    yield f"{path}.weight", Origin(weights, (width, inputs, *[1] * module.kernel_dims), transposed=True)
    if module.bias is not None:
        biases = tuple(None if stem in module.unbiased else f"{paths[stem]}.bias" for stem in stems)
        yield f"{path}.bias", Origin(biases, (width,))
