"""The training loop shared by all stages: fixed seeds, averaged weights and a log."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

_LOG_EVERY_STEPS = 50
_WARM_UP_STEPS = 200
_CLIP_NORM = 1.0
_WEIGHT_DECAY = 0.01
_EMA_DECAY = 0.999
# learning rate at the end of a stage, as a share of the rate after warm-up
_FINAL_RATE_SHARE = 0.02
_RANDOM_STREAMS = {
    "audio": 530,
    "vae": 316,
    "spread": 639,
    "mouth": 431,
    "features": 416,
    "unet": 444,
    "tune": 444,
}
"""Part of every seed: other numbers train another model."""

Losses = dict[str, Tensor]
"""Parts of the loss by name; "loss" is what is minimized."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of training."""

    steps: int
    batch: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What all stages share: the folder of the log, the device, and the seed of all random
    numbers.
    """

    folder: Path
    device: torch.device
    seed: int

    def generator(self, stream: str, step: int) -> np.random.Generator:
        """Random numbers of one step."""
        return np.random.Generator(np.random.PCG64([self.seed, _RANDOM_STREAMS[stream], step]))

    def log(self, **entry: Any) -> None:
        """Prints an entry and appends it to `log.jsonl`."""
        line = json.dumps(entry)
        print(line, flush=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def autocast(self) -> torch.autocast:
        """bfloat16 on CUDA, else no change."""
        return torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        )


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies `values` to `device` without synchronizing."""
    return torch.from_numpy(values).to(device, non_blocking=True)


def normal(generator: np.random.Generator, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal values generated on `device`, seeded from `generator`."""
    on_device = torch.Generator(device).manual_seed(int(generator.integers(2**62)))
    return torch.randn(shape, generator=on_device, device=device)


def run_stage(
    name: str,
    network: nn.Module,
    losses: Callable[[int], Losses],
    plan: StagePlan,
    context: TrainingContext,
) -> None:
    """Trains `network`; afterwards it is frozen and has its averaged weights.

    `losses(step)` computes the loss of one step and draws random numbers from that step's generator
    only.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    settings: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": _WEIGHT_DECAY}
    optimizer = torch.optim.AdamW(
        trained, plan.learning_rate, fused=context.device.type == "cuda", **settings
    )
    average = {key: tensor.detach().clone() for key, tensor in network.state_dict().items()}
    started_s = time.monotonic()
    network.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * _rate_factor(step, plan.steps)
        with context.autocast():
            parts = losses(step)
        optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        torch.nn.utils.clip_grad_norm_(trained, _CLIP_NORM)
        optimizer.step()
        # The decay is smaller in early steps, so that the initial weights fade.
        decay = min(_EMA_DECAY, (2 + step) / (11 + step))
        current = network.state_dict()
        get_ema_multi_avg_fn(decay)(list(average.values()), [current[key] for key in average], None)
        if (step + 1) % _LOG_EVERY_STEPS == 0 or step + 1 == plan.steps:
            values = {key: round(float(value.detach()), 5) for key, value in parts.items()}
            context.log(
                stage=name, step=step + 1, seconds=round(time.monotonic() - started_s, 1), **values
            )
    network.load_state_dict(average)
    network.eval().requires_grad_(False)


def _rate_factor(step: int, steps: int) -> float:
    """Learning rate factor: linear warm-up, then cosine decay."""
    warm_up = min(1.0, (step + 1) / min(_WARM_UP_STEPS, max(1, steps // 5)))
    return warm_up * (
        _FINAL_RATE_SHARE + (1 - _FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
