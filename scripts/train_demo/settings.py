"""Settings of data and training: the full ones, and a miniature for tests."""

from dataclasses import dataclass

from scripts.train_demo.atlas import Levels
from scripts.train_demo.networks import RESOLUTION_PX, SHIPPED, TINY, Sizes


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of training: it ends after `steps`, or after `share` of the time for all stages."""

    steps: int
    batch: int
    learning_rate: float
    share: float


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Number of recordings, and of scenes of `clip_frames` to render, for training and held out.

    `takes`: of each training scene; held-out scenes have one. `mouths`: poses in the atlas by opening, width, rounding.
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
    """Everything that determines the trained networks, except for the machine.

    `audio`, `vae`, `mouth`, `unet`, `tune`: the stages in order. `minutes`: limit of wall time for all of them.
    """

    sizes: Sizes
    resolution_px: int
    seed: int
    minutes: float
    data: DataPlan
    audio: StagePlan
    vae: StagePlan
    mouth: StagePlan
    unet: StagePlan
    tune: StagePlan


# Measured on an H100 with 16 cores: rendering takes five minutes, in which the audio encoder completes its steps; all
# stages together take 23 minutes. There the steps end each stage, not the time: the shares leave a sixth in reserve.
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
    mouth=StagePlan(steps=1500, batch=128, learning_rate=1e-3, share=0.03),
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
    mouth=StagePlan(steps=6, batch=8, learning_rate=2e-3, share=0.2),
    unet=StagePlan(steps=6, batch=2, learning_rate=1e-3, share=0.2),
    tune=StagePlan(steps=4, batch=1, learning_rate=1e-4, share=0.2),
)
