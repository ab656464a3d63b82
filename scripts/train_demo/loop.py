"""The training loop shared by all stages: fixed seeds, a time budget, resumable checkpoints and a log."""

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

from scripts.train_demo.settings import StagePlan

CHECKPOINT_EVERY_S = 60.0
_LOG_EVERY_STEPS = 50
_WARM_UP_STEPS = 200
_CLIP_NORM = 1.0
_WEIGHT_DECAY = 0.01
_EMA_DECAY = 0.999
_FINAL_RATE_SHARE = 0.02
"""Learning rate at the end of a stage, as a share of the rate after warm-up."""

_RANDOM_STREAMS = {
    "audio": 530,
    "vae": 316,
    "latent_spread": 639,
    "mouth": 431,
    "features": 416,
    "unet": 444,
    "tune": 444,
}
"""Part of every seed: other numbers train another model."""

Losses = dict[str, Tensor]
"""Parts of the loss by name; "loss" is what is minimized."""


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What all stages share.

    `folder`: receives checkpoints and log. `seed`: of all random numbers. `budget_s`: wall time for all stages.
    `compiled`: run the U-Net through torch.compile; a separate process compiles it during the first stages.
    """

    folder: Path
    device: torch.device
    seed: int
    budget_s: float
    compiled: bool = False

    def generator(self, stream: str, step: int) -> np.random.Generator:
        """Random numbers of one step; the same whether training was interrupted or not."""
        return np.random.Generator(np.random.PCG64([self.seed, _RANDOM_STREAMS[stream], step]))

    def log(self, **entry: Any) -> None:
        """Prints an entry and appends it to `log.jsonl`."""
        line = json.dumps(entry)
        print(line, flush=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def autocast(self) -> torch.autocast:
        """bfloat16 on CUDA, else no change."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies `values` to `device` without synchronizing."""
    return torch.from_numpy(values).to(device, non_blocking=True)


def normal(generator: np.random.Generator, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal values generated on `device`, seeded from `generator`."""
    on_device = torch.Generator(device).manual_seed(int(generator.integers(2**62)))
    return torch.randn(shape, generator=on_device, device=device)


class WeightAverage:
    """Exponential moving average of a network's weights."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self.count = 0

    def update(self) -> None:
        """Adds the current weights; the decay is smaller in early steps, so that the initial weights fade."""
        self.count += 1
        decay = min(_EMA_DECAY, (1 + self.count) / (10 + self.count))
        current = self._network.state_dict()
        get_ema_multi_avg_fn(decay)(list(self.state.values()), [current[name] for name in self.state], None)


def run_stage(
    name: str,
    network: nn.Module,
    losses: Callable[[int], Losses],
    plan: StagePlan,
    context: TrainingContext,
) -> None:
    """Trains `network` until the plan's steps or its share of the time are used up; resumes from the last checkpoint.

    `losses(step)` computes the loss of one step and draws random numbers from that step's generator only. Afterwards
    the network is frozen and has its averaged weights.
    """
    run = _StageRun(name, network, plan, context)
    run.resume()
    started, saved, last_logged = time.monotonic(), time.monotonic(), run.step
    before_s = run.elapsed_s
    network.train()
    while run.progress() < 1.0:
        parts = run.advance(losses)
        now = time.monotonic()
        run.elapsed_s = before_s + now - started
        if run.step - last_logged >= _LOG_EVERY_STEPS or run.progress() >= 1.0:
            values = {key: round(float(value.detach()), 5) for key, value in parts.items()}
            context.log(stage=name, step=run.step, seconds=round(run.elapsed_s, 1), **values)
            last_logged = run.step
        if now - saved >= CHECKPOINT_EVERY_S:
            run.save()
            saved = now
    run.save()
    network.load_state_dict(run.average.state)
    network.eval().requires_grad_(False)


class _StageRun:
    """The state of a running stage."""

    def __init__(self, name: str, network: nn.Module, plan: StagePlan, context: TrainingContext) -> None:
        self._name, self._network, self._plan, self._context = name, network, plan, context
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained,
            plan.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=_WEIGHT_DECAY,
            fused=context.device.type == "cuda",
        )
        self.average = WeightAverage(network)
        self.step, self.elapsed_s = 0, 0.0
        self._path = context.folder / f"{name}.pt"

    def progress(self) -> float:
        """The completed share of the stage, by steps or by time, whichever is larger."""
        budget_s = self._plan.share * self._context.budget_s
        return max(self.step / self._plan.steps, self.elapsed_s / budget_s)

    def advance(self, losses: Callable[[int], Losses]) -> Losses:
        """One step of the optimizer."""
        rate = self._plan.learning_rate * _rate_factor(self.step, self._plan.steps, self.progress())
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self._context.autocast():
            parts = losses(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        torch.nn.utils.clip_grad_norm_(self._trained, _CLIP_NORM)
        self._optimizer.step()
        self.average.update()
        self.step += 1
        return parts

    def save(self) -> None:
        """Writes all that `resume` needs, atomically."""
        content = {
            "step": self.step,
            "elapsed_s": self.elapsed_s,
            "network": self._network.state_dict(),
            "average": self.average.state,
            "count": self.average.count,
            "optimizer": self._optimizer.state_dict(),
        }
        unfinished = self._path.with_suffix(".part")
        torch.save(content, unfinished)
        unfinished.replace(self._path)

    def resume(self) -> None:
        """Loads the last checkpoint, if there is one."""
        if not self._path.exists():
            return
        content = torch.load(self._path, map_location=self._context.device, weights_only=True)
        self._network.load_state_dict(content["network"])
        self._optimizer.load_state_dict(content["optimizer"])
        self.average.state, self.average.count = content["average"], content["count"]
        self.step, self.elapsed_s = content["step"], content["elapsed_s"]
        self._context.log(stage=self._name, resumed_at=self.step)


def _rate_factor(step: int, steps: int, progress: float) -> float:
    """Learning rate factor: linear warm-up, then cosine decay."""
    warm_up = min(1.0, (step + 1) / min(_WARM_UP_STEPS, max(1, steps // 5)))
    return warm_up * (_FINAL_RATE_SHARE + (1 - _FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
