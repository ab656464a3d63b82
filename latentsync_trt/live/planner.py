"""Decides what a live session paints and shows next; knows no threads, no clock and no pictures.

Positions count the pictures shown, late ones apart; a frame is painted for the position at which it
will be shown, so that the idle clip goes on without a jump.
"""

from collections import deque
from dataclasses import dataclass

from latentsync_trt.live.speech_queue import SpeechQueue, SpokenFrame, silent_frame
from latentsync_trt.types import Float32Array

FADE_FRAMES = 4
"""In the first and the last 160 ms less of the painted face shows."""

_TAIL_FRAMES = 5
"""Of silence that are painted after speech: the mouth closes."""

_SPARE_FRAMES = 1
"""More than painting takes, as pieces of speech and who takes frames come unevenly."""

_PATIENCE_FRAMES = 10
"""In which more must be said, where there is too little for a window and no end: 400 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFrame:
    """A frame to paint. `position`: its place in the session's time, in the idle loop; `share`: how
    much of the painted face shows, in ]0, 1]; `begins`: nothing was painted right before it.
    """

    position: int
    spoken: SpokenFrame
    share: float
    begins: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown next. `late`: the last picture again; `mouth`: the next painted frame, else one
    of the idle clip.

    `ended`: number of an utterance that ended before it, 0 if none did.
    """

    late: bool = False
    mouth: bool = False
    ended: int = 0


class LivePlanner:
    """The state of a session's time. `position`: of the frame that was shown last; `starved`: see
    `Counts`.
    """

    def __init__(
        self, speech: SpeechQueue, hop: int, look_ahead_ms: int, silence: Float32Array
    ) -> None:
        self._speech = speech
        self._hop = hop
        self._look_ahead_ms = look_ahead_ms
        self._silence = silence
        self.position = -1
        self.starved = 0
        self._shows_mouth = False
        self._expected = deque[int]()  # positions of frames that are planned and not shown yet
        self._next: int | None = None  # position of the next frame to plan, while there is speech
        self._faded_in = self._tail = 0
        # last positions of utterances that ended after they had been planned
        self._ends = deque[tuple[int, int]]()
        self._patience = _PATIENCE_FRAMES

    @property
    def waiting(self) -> int:
        """How many planned frames have not been shown."""
        return len(self._expected)

    @property
    def idle(self) -> bool:
        """Whether nothing is said, and nothing waits to be."""
        return not self._expected and not self._speech.left_s and self._next is None

    def said(self) -> None:
        """Speech has come."""
        self._patience = _PATIENCE_FRAMES

    def end(self) -> None:
        """The utterance is complete."""
        if self._speech.end():  # after all of it was planned
            self._ends.append((self._last_planned, self._speech.number))

    def stop(self, painted: int) -> int:
        """Drops what was planned, but of the next `painted` frames those in which the mouth fades;
        returns how many.
        """
        self._speech.clear()
        self._ends.clear()
        self._next = None
        fading = [
            each for each in [*self._expected][:painted] if each < self.position + FADE_FRAMES
        ]
        self._expected = deque(fading if self._shows_mouth else ())
        return len(self._expected)

    def is_pressed(self, paint_frames: int) -> bool:
        """Whether a window, which takes `paint_frames`, must begin with the speech there is; once a
        frame.
        """
        self._patience -= 1
        if self._next is None:
            return self._patience < 0
        return self._next - self.position - 1 <= paint_frames

    def window(self, paint_frames: int, *, pressed: bool) -> list[PlannedFrame]:
        """The frames of the next window; none while more speech should be waited for, or far enough
        ahead.
        """
        if len(self._expected) > self._hop + paint_frames + _SPARE_FRAMES:
            return []
        count, is_all = self._speech.ready(self._look_ahead_ms)
        starved = False
        if count < self._hop and not pressed and not (is_all and self._next is None):
            return []  # more may come until it is needed
        if count < self._hop and not is_all:
            count, _ = self._speech.ready(0)
            starved = is_all = not count
        if not count and self._next is None:
            return []
        if self._next is None:
            self._next = max(self.position + paint_frames + _SPARE_FRAMES, self._last_planned) + 1
            self._faded_in = 0
        planned = self._planned(
            self._next, min(count, self._hop), is_all=is_all and count <= self._hop
        )
        self.starved += starved * len(planned)
        self._expected.extend(each.position for each in planned)
        return planned

    @property
    def _last_planned(self) -> int:
        return max([self.position, *[*self._expected][-1:]])

    def _planned(self, first: int, count: int, *, is_all: bool) -> list[PlannedFrame]:
        """`count` frames of speech, and, where that is all, of the silence after it, from position
        `first`.
        """
        begins = not self._faded_in
        spoken = [self._speech.take() for _ in range(count)]
        self._tail = _TAIL_FRAMES if spoken else self._tail
        tail = min(self._hop - count, self._tail) if is_all else 0
        shares = [min(1.0, (self._faded_in + 1 + place) / FADE_FRAMES) for place in range(count)]
        shares += [min(1.0, (self._tail - place) / FADE_FRAMES) for place in range(tail)]
        spoken += [silent_frame(self._silence)] * tail
        if shares:
            self._faded_in = round(shares[-1] * FADE_FRAMES)
        else:
            self._faded_in = self._faded_in
        self._tail -= tail
        self._next = None if tail and not self._tail else first + len(spoken)
        return [
            PlannedFrame(first + place, frame, share, begins and place == 0)
            for place, (frame, share) in enumerate(zip(spoken, shares, strict=True))
        ]

    def show(self, painted: int) -> Shown:
        """Goes on by a frame, where `painted` of the planned ones are there."""
        due = self._expected[0] if self._expected else self._next
        if due == self.position + 1 and not painted:
            return Shown(late=True)
        self.position += 1
        self._shows_mouth = bool(self._expected) and self._expected[0] == self.position
        if self._shows_mouth:
            self._expected.popleft()
        if self._ends and self._ends[0][0] < self.position:
            ended = self._ends.popleft()[1]
        else:
            ended = 0
        return Shown(mouth=self._shows_mouth, ended=ended)
