"""The stages after painting: painted faces are analyzed, become patches of their frames, and are measured."""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.face.paste import InspectedFace, Means, Pasted, Paster
from latentsync_trt.measure.pictures import seam_score
from latentsync_trt.media.parts import part_of
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.threads import StageClock, prefetch
from latentsync_trt.types import AlignedFace, Enhancer, Frame, Patch, UInt16Array

T = TypeVar("T")
R = TypeVar("R")

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""

Shares = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""

GROUP = "latentsync_trt.enhancers"
"""Entry points of this group name a class, or a function, that makes an `Enhancer` without arguments."""

_THREADS = 2
"""Of a stage whose frames do not depend on each other. Alone, it would wait for Python's lock half of its time."""

_WHITE = np.float32(65535)

Items = Generator[tuple[FrameJob, tuple[T, ...]], None, None]
"""Jobs in order, with what is known of each painted face."""

Change = Callable[[tuple[FrameJob, tuple[T, ...]]], tuple[FrameJob, tuple[R, ...]]]

Prefetch = Callable[..., Generator[Any, None, None]]
"""Called as `prefetch`; may run everything in the caller's thread."""

Painted = tuple[Target, AlignedFace, UInt16Array, Fraction]
"""How a face was found, cut out and painted, and how much of it shows."""


class Composer:
    """Pastes painted faces and measures them; starts anew at each part of the file, so that a resumed run is the same.

    Args:
        frames_done: frames before this one have been written already, and pass as they are.
    """

    def __init__(
        self, paster: Paster, enhancer: Enhancer | None, quality: Quality, clock: StageClock, frames_done: int = 0
    ) -> None:
        self._paster, self._enhancer, self._quality = paster, enhancer, quality
        self._clock, self._frames_done = clock, frames_done

    def stages(self, jobs: Generator[FrameJob, None, None], prefetch: Prefetch = prefetch) -> Items[Patch]:
        """Jobs in order, with the new pixels of each face; three stages, each in threads of its own."""
        shown, analyze = self._shown(jobs), self._each("analyze paste", self._analyzed)
        analyzed = prefetch(shown, analyze, name="analyze paste", threads=_THREADS if self._enhancer is None else 1)
        known = self._in_parts(analyzed, self._each("compose", self._remembered, 0), lambda _: self._paster.restart())
        composed = prefetch(known, self._each("compose", self._pasted), name="compose", threads=_THREADS)
        measured = self._in_parts(composed, self._each("measure", self._measured), self._quality.restart)
        return prefetch(measured, name="measure")

    def _shown(self, jobs: Generator[FrameJob, None, None]) -> Items[Painted]:
        with closing(faded(jobs)) as shown:
            for job, shares in shown:
                is_new = job.frame.index >= self._frames_done
                faces = (
                    (each, each.face, each.painted, shares[each.person])
                    for each in (job.targets if is_new else ())
                    if each.face is not None and each.painted is not None
                )
                yield job, tuple(faces)

    def _each(self, name: str, change: Callable[[Frame, T], R], frames: int = 1) -> Change[T, R]:
        """`change` of each face of a frame, as part of a stage; `frames`: counted for one with faces."""

        def changed(item: tuple[FrameJob, tuple[T, ...]]) -> tuple[FrameJob, tuple[R, ...]]:
            job, faces = item
            with self._clock.measure(name, frames if faces else 0):
                return job, tuple(change(job.frame, face) for face in faces)

        return changed

    def _in_parts(self, items: Items[T], change: Change[T, R], begin_part: Callable[[Fraction], object]) -> Items[R]:
        part = -1
        with closing(items):
            for item in items:
                frame = item[0].frame
                time_s = frame.time_s
                if part_of(time_s) != part and frame.index >= self._frames_done:
                    part = part_of(time_s)
                    begin_part(time_s)
                yield change(item)

    def _analyzed(self, frame: Frame, shown: Painted) -> tuple[Painted, InspectedFace]:
        target, face, painted, share = shown
        if self._enhancer is not None:
            painted = enhanced(painted, self._enhancer)
        inspected = self._paster.inspect_face(frame.picture, face, painted, target.tracked)
        return (target, face, painted, share), inspected

    def _remembered(
        self, frame: Frame, analyzed: tuple[Painted, InspectedFace]
    ) -> tuple[Painted, InspectedFace, Means]:
        (target, *_), inspected = analyzed
        return *analyzed, self._paster.remember(target.track_id, frame.time_s, inspected)

    def _pasted(self, frame: Frame, known: tuple[Painted, InspectedFace, Means]) -> tuple[Target, Fraction, Pasted]:
        (target, face, painted, share), inspected, means = known
        return target, share, self._paster.paste(frame.picture, face, painted, inspected, means)

    def _measured(self, frame: Frame, composed: tuple[Target, Fraction, Pasted]) -> Patch:
        target, share, pasted = composed
        patch = pasted.patch
        seam = seam_score(frame.picture, patch) if self._quality.looks_at(frame) else None
        self._quality.add(frame, target, pasted, seam)
        return patch if share == 1 else replace(patch, weight=patch.weight * np.float32(share))


def faded(jobs: Generator[FrameJob, None, None]) -> Generator[tuple[FrameJob, Shares], None, None]:
    """Every job in order with the shares of its faces; holds back those of the last `FADE_S`.

    At cuts, and at both ends of the clip, nothing fades.
    """
    held: deque[tuple[FrameJob, Shares]] = deque()
    begins_s: dict[int, Fraction | None] = {}
    last: FrameJob | None = None
    with closing(jobs):
        for job in jobs:
            now_s, people = job.frame.time_s, {target.person for target in job.targets}
            is_cut = last is None or (None not in (last.shot, job.shot) and last.shot != job.shot)
            if not is_cut:
                _fade_out(held, begins_s.keys() - people, now_s)
            before_s = None if is_cut or last is None else last.frame.time_s
            begins_s = {person: begins_s.get(person, before_s) for person in people}
            held.append((job, {person: _share(begin_s, now_s) for person, begin_s in begins_s.items()}))
            while held and held[0][0].frame.time_s <= now_s - FADE_S:
                yield held.popleft()
            last = job
    yield from held


def _fade_out(held: deque[tuple[FrameJob, Shares]], people: set[int], end_s: Fraction) -> None:
    for person in people:
        for job, shares in reversed(held):
            if person not in shares:
                break
            shares[person] = min(shares[person], _share(job.frame.time_s, end_s))


def _share(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    return Fraction(1) if start_s is None else min(Fraction(1), (end_s - start_s) / FADE_S)


def load_enhancer(name: str) -> Enhancer:
    """The enhancer with the entry point `name`.

    Raises:
        InputError: there is none, it cannot be imported, or what it makes has no method `enhance`.
    """
    entry = check_enhancer(name)
    try:
        make = entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"--enhancer {name}: cannot be imported: {error}; reinstall its package") from error
    enhancer: Enhancer = make()
    if not callable(getattr(enhancer, "enhance", None)):
        raise InputError(f"--enhancer {name}: {entry.value} makes no object with a method enhance(face)")
    return enhancer


def check_enhancer(name: str) -> EntryPoint:
    """The entry point of an installed enhancer, without importing it; raises `InputError` if there is none."""
    installed = entry_points(group=GROUP)
    if name not in installed.names:
        names = ", ".join(sorted(installed.names)) or "none"
        raise InputError(
            f"--enhancer {name}: not installed; installed: {names}; install a package that has an entry point of this "
            f"name in the group {GROUP}"
        )
    return installed[name]


def enhanced(painted: UInt16Array, enhancer: Enhancer) -> UInt16Array:
    """The face `painted`, uint16 `(R, R, 3)` RGB (257 × the 8-bit level), as `enhancer` returns it, perhaps larger.

    Raises:
        InputError: it returned something else than a square RGB picture of at least that size, or NaN or infinity.
    """
    found: object = enhancer.enhance(np.asarray(painted / _WHITE, np.float32))
    least_px, problem = len(painted), f"{type(found).__name__}"
    if isinstance(found, np.ndarray):
        sides = found.shape[0] if found.ndim else 0
        problem = "" if found.dtype.kind == "f" and np.isfinite(found).all() else f"{found.dtype}, NaN or infinity"
        if found.shape != (sides, sides, 3) or sides < least_px:
            problem = f"shape {found.shape} for a face of ({least_px}, {least_px}, 3)"
    if problem:
        wanted = "a float32 array (n, n, 3) in [0, 1], n at least that of the face"
        raise InputError(f"enhancer {type(enhancer).__name__}: enhance returned {problem}; it must return {wanted}")
    return np.rint(np.clip(np.asarray(found), 0, 1) * _WHITE).astype(np.uint16)
