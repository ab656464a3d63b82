"""How much of each face shows by how far its head turns aside."""

from contextlib import closing
from dataclasses import replace

from latentsync_trt.compositing.turning import HeadTurn, aside_of, next_turn
from latentsync_trt.face.search import TURNED_AWAY
from latentsync_trt.sync.faces import FrameJobs


def with_turns(jobs: FrameJobs, *, leaves_out: bool = True) -> FrameJobs:
    """Yields every job in order, with how much of its faces shows, and why if that is nothing.

    Args:
        leaves_out: whether faces that are turned away are no targets any more.
    """
    before: dict[int, HeadTurn] = {}
    with closing(jobs):
        for job in jobs:
            targets = []
            turns: dict[int, HeadTurn] = {}
            for target in job.targets:
                aside = aside_of(target.tracked, target.matrix)
                turn = next_turn(before.get(target.track_id), target.time_s, aside)
                turns[target.track_id] = turn
                if not (leaves_out and turn.is_away):
                    targets.append(replace(target, opacity=turn.opacity))
            before = turns
            why_unpainted = job.why_unpainted
            if turns and not any(turn.opacity for turn in turns.values()):
                why_unpainted = TURNED_AWAY
            yield replace(job, targets=tuple(targets), why_unpainted=why_unpainted)
