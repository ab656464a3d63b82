"""The training loop shared by all stages: fixed seeds, averaged weights, checkpoints and a log."""

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
    """What all stages share: the folder of log and checkpoints, the device, the seed of all random
    numbers, and when training pauses, in seconds of `time.monotonic`.
    """

    folder: Path
    device: torch.device
    seed: int
    until_s: float = math.inf

    def generator(self, stream: str, step: int) -> np.random.Generator:
        """Random numbers of one step."""
        return np.random.Generator(np.random.PCG64([self.seed, _RANDOM_STREAMS[stream], step]))

    def checkpoint(self, stage: str) -> Path:
        """The file with the weights of a stage."""
        return self.folder / f"{stage}.pt"

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


def graphed(module: nn.Module, example: tuple[Tensor, ...]) -> Callable[..., Any]:
    """Returns a call of `module` for arguments like `example`, on CUDA as a recorded graph:
    launching thousands of small kernels takes longer than running them.
    """
    if example[0].device.type == "cuda":
        copies = tuple(part.detach().clone() for part in example)
        module = torch.cuda.make_graphed_callables(module, copies)
    # A bound method: as a submodule of a stage it would register the weights twice.
    return module.__call__


class PausedError(RuntimeError):
    """The time is up: the weights are saved, and the same command goes on from them."""


def run_stage(
    name: str,
    network: nn.Module,
    losses: Callable[[int], Losses],
    plan: StagePlan,
    context: TrainingContext,
) -> None:
    """Trains `network`, or goes on from its checkpoint; afterwards it is frozen and has its
    averaged weights. Raises `PausedError` where the context says so.

    `losses(step)` computes the loss of one step and draws random numbers from that step's generator
    only.
    """
    first = _restored(name, network, context)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    settings: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": _WEIGHT_DECAY}
    optimizer = torch.optim.AdamW(
        trained, plan.learning_rate, fused=context.device.type == "cuda", **settings
    )
    average = {key: tensor.detach().clone() for key, tensor in network.state_dict().items()}
    started_s = time.monotonic()
    network.train()
    for step in range(first, plan.steps):
        if time.monotonic() > context.until_s:
            _save(name, average, step, context)
            raise PausedError(f"{name}: paused after {step} of {plan.steps} steps")
        factor = _rate_factor(step, plan.steps) * min(1.0, (step - first + 1) / _WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * factor
        with context.autocast():
            parts = losses(step)
        optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        torch.nn.utils.clip_grad_norm_(trained, _CLIP_NORM)
        optimizer.step()
        # The decay is smaller in early steps, so that the initial weights fade.
        decay = min(_EMA_DECAY, (2 + step - first) / (11 + step - first))
        current = network.state_dict()
        get_ema_multi_avg_fn(decay)(list(average.values()), [current[key] for key in average], None)
        if (step + 1) % _LOG_EVERY_STEPS == 0 or step + 1 == plan.steps:
            values = {key: round(float(value.detach()), 5) for key, value in parts.items()}
            context.log(
                stage=name, step=step + 1, seconds=round(time.monotonic() - started_s, 1), **values
            )
    if first < plan.steps:
        _save(name, average, plan.steps, context)
    network.load_state_dict(average)
    network.eval().requires_grad_(False)


def _restored(name: str, network: nn.Module, context: TrainingContext) -> int:
    """Loads the checkpoint of a stage into `network`, if there is one; returns the steps done."""
    path = context.checkpoint(name)
    if not path.is_file():
        return 0
    saved = torch.load(path, map_location=context.device, weights_only=True)
    network.load_state_dict({key: tensor.float() for key, tensor in saved["average"].items()})
    return int(saved["step"])


def _save(name: str, average: dict[str, Tensor], step: int, context: TrainingContext) -> None:
    """Writes the averaged weights as halves: the optimizer's moments come back within the
    warm-up, so a pause keeps nothing else.
    """
    halves = {key: tensor.to("cpu", torch.float16) for key, tensor in average.items()}
    path = context.checkpoint(name)
    part = path.with_suffix(".part")
    torch.save({"step": step, "average": halves}, part)
    part.replace(path)


def _rate_factor(step: int, steps: int) -> float:
    """Learning rate factor after the warm-up: cosine decay."""
    decayed = 0.5 * (1 + math.cos(math.pi * step / steps))
    return _FINAL_RATE_SHARE + (1 - _FINAL_RATE_SHARE) * decayed
