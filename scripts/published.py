"""Networks in the formats of the published checkpoints: the inverse of
`latentsync_trt.export.networks`.
"""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from torch import Tensor, nn

from latentsync_trt.export.checkpoints import WHISPER_DIMS, origins
from latentsync_trt.export.networks import WhisperConfig


def checkpoint_tensors(network: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """The network's parameters under the names and in the shapes of the published checkpoints."""
    state = network.state_dict()
    tensors = dict[str, Tensor]()
    for key, origin in origins(network, prefix).items():
        parts = state[key].chunk(len(origin.names), 1 if origin.transposed else 0)
        for name, part in zip(origin.names, parts, strict=True):
            if name is not None:
                tensors[name] = (
                    (part.t() if origin.transposed else part).reshape(origin.shape).clone()
                )
    return tensors


def whisper_file(config: WhisperConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The content of an OpenAI Whisper file with the encoder only."""
    return {
        "dims": dict(zip(WHISPER_DIMS, astuple(config), strict=True)),
        "model_state_dict": tensors,
    }
