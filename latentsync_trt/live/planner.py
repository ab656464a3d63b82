"""Decides what a live session paints and shows next; knows no threads, no clock and no pictures.

Positions count the pictures shown, late ones apart; a frame is painted for the position at which it
will be shown, so that the idle clip goes on without a jump.
"""

from collections import deque
from dataclasses import dataclass

from latentsync_trt.live.speech_queue import SpeechQueue, SpokenFrame, silent_frame
from latentsync_trt.types import Float32Array

FADE_FRAMES = 4
"""Frames, 160 ms, in which a painted face fades in, and out."""

_TAIL_FRAMES = 5
"""Frames of silence that are painted after speech: the mouth closes."""

_SPARE_FRAMES = 1
"""Frames beyond those that pass in painting, as pieces of speech and who takes frames come
unevenly."""

_PATIENCE_FRAMES = 10
"""Frames in which more must be said, where there is too little for a window and no end: 400 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFrame:
    """A frame to paint."""

    position: int
    spoken: SpokenFrame
    opacity: float
    """How much of the painted face shows, in ]0, 1]."""
    begins: bool
    """Whether nothing was painted right before this frame."""


@dataclass(frozen=True, slots=True)
class NextPicture:
    """What is shown next: a picture of the idle clip, unless another is named."""

    late: bool = False
    """Whether the last picture is shown again."""
    painted: bool = False
    """Whether the next painted frame is shown."""
    ended: int = 0
    """The number of an utterance that ended before it, 0 if none did."""


@dataclass(frozen=True, slots=True)
class _LateEnd:
    """The end of an utterance that was not known when its last frame was planned."""

    position: int
    """The last position that had been planned."""
    utterance: int


class LivePlanner:
    """The state of a session's time."""

    def __init__(
        self, speech: SpeechQueue, hop: int, look_ahead_ms: int, silence: Float32Array
    ) -> None:
        self.position = -1
        """The position of the picture that was shown last."""
        self.starved = 0
        """How many frames of silence were planned since speech did not arrive in time."""
        self._speech = speech
        self._hop = hop
        self._look_ahead_ms = look_ahead_ms
        self._silent = silent_frame(silence)
        self._shows_mouth = False
        self._expected = deque[int]()  # positions of frames that are planned and not shown yet
        self._next: int | None = None  # position of the next frame to plan, while there is speech
        self._faded_in = 0  # the opacity of the last planned frame, in steps of 1 / FADE_FRAMES
        self._tail = 0  # how many frames of silence are to be painted after the speech
        self._ends = deque[_LateEnd]()
        self._patience = _PATIENCE_FRAMES

    @property
    def waiting(self) -> int:
        """How many planned frames have not been shown."""
        return len(self._expected)

    @property
    def idle(self) -> bool:
        """Whether nothing is said, and nothing waits to be."""
        return not self._expected and not self._speech.left_s and self._next is None

    def on_speech(self) -> None:
        """Restarts the wait for more speech."""
        self._patience = _PATIENCE_FRAMES

    def end(self) -> None:
        """The utterance is complete."""
        if self._speech.end():
            self._ends.append(_LateEnd(self._last_planned(), self._speech.number))

    def stop(self, painted: int) -> int:
        """Drops what was planned, except those of the next `painted` frames in which the mouth
        fades; returns how many these are.
        """
        self._speech.clear()
        self._ends.clear()
        self._next = None
        fading = list[int]()
        if self._shows_mouth:
            end = self.position + FADE_FRAMES
            ready = [*self._expected][:painted]
            fading = [position for position in ready if position < end]
        self._expected = deque(fading)
        return len(fading)

    def is_pressed(self, paint_frames: int) -> bool:
        """Returns whether a window, which takes `paint_frames`, must begin with the speech there
        is; to be called once a frame.
        """
        self._patience -= 1
        if self._next is None:
            return self._patience < 0
        return self._next - self.position - 1 <= paint_frames

    def window(self, paint_frames: int, *, pressed: bool) -> list[PlannedFrame]:
        """Returns the frames of the next window; none while more speech should be waited for, or
        far enough ahead.
        """
        if len(self._expected) > self._hop + paint_frames + _SPARE_FRAMES:
            return []
        count, is_all = self._speech.ready(self._look_ahead_ms)
        starved = False
        if count < self._hop:
            is_whole_utterance = is_all and self._next is None
            if not pressed and not is_whole_utterance:
                return []  # more may come until it is needed
            if not is_all:
                count, _ = self._speech.ready(0)
                starved = not count
        if self._next is None:
            if not count:
                return []
            first = self.position + paint_frames + _SPARE_FRAMES
            self._next = max(first, self._last_planned()) + 1
            self._faded_in = 0
        spoken = min(count, self._hop)
        planned = self._spoken_frames(self._next, spoken)
        if starved or (is_all and count <= self._hop):
            planned += self._closing_frames(self._next + spoken, self._hop - spoken)
        self._next += len(planned)
        if not self._tail:
            self._next = None
        if starved:
            self.starved += len(planned)
        self._expected.extend(each.position for each in planned)
        return planned

    def _last_planned(self) -> int:
        """Returns the position of the last frame that was shown or is planned."""
        return max([self.position, *[*self._expected][-1:]])

    def _spoken_frames(self, first: int, count: int) -> list[PlannedFrame]:
        planned = []
        for position in range(first, first + count):
            begins = not self._faded_in
            self._faded_in = min(self._faded_in + 1, FADE_FRAMES)
            self._tail = _TAIL_FRAMES
            opacity = self._faded_in / FADE_FRAMES
            planned.append(PlannedFrame(position, self._speech.take(), opacity, begins))
        return planned

    def _closing_frames(self, first: int, most: int) -> list[PlannedFrame]:
        """Returns up to `most` frames of silence, in which the mouth closes."""
        planned = []
        for position in range(first, first + min(most, self._tail)):
            self._faded_in = min(self._tail, FADE_FRAMES)
            self._tail -= 1
            opacity = self._faded_in / FADE_FRAMES
            planned.append(PlannedFrame(position, self._silent, opacity, begins=False))
        return planned

    def show(self, painted: int) -> NextPicture:
        """Goes on by a frame, where `painted` of the planned ones are there."""
        due = self._expected[0] if self._expected else self._next
        if due == self.position + 1 and not painted:
            return NextPicture(late=True)
        self.position += 1
        self._shows_mouth = bool(self._expected) and self._expected[0] == self.position
        if self._shows_mouth:
            self._expected.popleft()
        ended = 0
        if self._ends and self._ends[0].position < self.position:
            ended = self._ends.popleft().utterance
        return NextPicture(painted=self._shows_mouth, ended=ended)
