"""How much of everything: what is shipped, and a miniature for tests."""

from dataclasses import dataclass, replace

from scripts.train_demo.atlas import Levels
from scripts.train_demo.networks import RESOLUTION_PX, SHIPPED, TINY, Sizes


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of training: it ends after `steps`, or after `share` of the minutes given for all."""

    steps: int
    batch: int
    learning_rate: float
    share: float


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Recordings to speak, and scenes of `clip_frames` to film, for training and held out.

    `takes`: of each training scene; held-out scenes have one. `mouths`: poses to draw along opening, width, rounding.
    """

    recordings: int
    clips: int
    held_out_recordings: int
    held_out_clips: int
    clip_frames: int
    takes: int
    mouths: Levels


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides what training makes, but for the machine.

    `audio`, `vae`, `mouth_predictor`, `unet`, `tune`: the stages in order. `minutes`: most wall time for all together.
    """

    sizes: Sizes
    resolution_px: int
    seed: int
    minutes: float
    data: DataPlan
    audio: StagePlan
    vae: StagePlan
    mouth_predictor: StagePlan
    unet: StagePlan
    tune: StagePlan


# The audio encoder is trained while the clips are filmed, which takes 16 cores five minutes: all its steps fit in.
# All steps take an H100 23 minutes. There each stage ends by its steps, not by the clock: shares leave a sixth.
FULL = Settings(
    sizes=SHIPPED,
    resolution_px=RESOLUTION_PX,
    seed=7,
    minutes=25.0,
    data=DataPlan(
        recordings=520, clips=400, held_out_recordings=24, held_out_clips=24, clip_frames=96, takes=6, mouths=(33, 9, 5)
    ),
    audio=StagePlan(steps=6000, batch=16, learning_rate=1e-3, share=0.18),
    vae=StagePlan(steps=6000, batch=64, learning_rate=1e-3, share=0.19),
    mouth_predictor=StagePlan(steps=1500, batch=128, learning_rate=1e-3, share=0.03),
    unet=StagePlan(steps=4400, batch=32, learning_rate=6e-4, share=0.42),
    tune=StagePlan(steps=2750, batch=8, learning_rate=1e-4, share=0.18),
)

MINIATURE = Settings(
    sizes=TINY,
    resolution_px=64,
    seed=7,
    minutes=30.0,
    data=DataPlan(
        recordings=2, clips=2, held_out_recordings=1, held_out_clips=1, clip_frames=20, takes=2, mouths=(4, 3, 2)
    ),
    audio=StagePlan(steps=6, batch=1, learning_rate=2e-3, share=0.2),
    vae=StagePlan(steps=6, batch=4, learning_rate=2e-3, share=0.2),
    mouth_predictor=StagePlan(steps=6, batch=8, learning_rate=2e-3, share=0.2),
    unet=StagePlan(steps=6, batch=2, learning_rate=1e-3, share=0.2),
    tune=StagePlan(steps=4, batch=1, learning_rate=1e-4, share=0.2),
)

STAGES = ("audio", "vae", "mouth_predictor", "unet", "tune")


def shortened(settings: Settings, minutes: float) -> Settings:
    """The same in less time, or more."""
    return replace(settings, minutes=minutes)
