"""What was seen of faces in a clip, and why none was painted."""

from dataclasses import dataclass, field
from pathlib import Path

from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.geometry import LEAST_HEIGHT_PX, LEAST_WIDTH_PX
from latentsync_trt.face.tracker import ON_ITS_SIDE, FrameFaces
from latentsync_trt.types import Frame, Interval

_WRONG_TAG = (
    "its rotation tag is wrong; set it to 0, 90, 180 or 270: ffmpeg -display_rotation ANGLE -i in.mp4 -c copy out.mp4"
)


@dataclass(slots=True, eq=False)
class FaceStats:
    """What was seen of faces in all frames that were added, in their order.

    `untouched`: the times at which faces were wanted, but none was chosen.
    """

    frames: int = 0
    frames_with_face: int = 0
    searched: int = 0
    turned: int = 0
    most_faces: int = 0
    untouched: list[Interval] = field(default_factory=list)

    def add(self, frame: Frame, seen: FrameFaces | None, *, has_face: bool) -> None:
        """Adds the next frame."""
        self.frames += 1
        self.frames_with_face += has_face
        if seen is None:
            return
        self.searched += 1
        self.most_faces = max(self.most_faces, len(seen.faces))
        self.turned += not seen.faces and seen.why_none == ON_ITS_SIDE
        if has_face:
            return
        reason = "other faces" if seen.faces else seen.why_none
        start_s, end_s = float(frame.time_s), float(frame.time_s + frame.duration_s)
        if self.untouched and (self.untouched[-1].reason, self.untouched[-1].end_s) == (reason, start_s):
            start_s = self.untouched.pop().start_s
        self.untouched.append(Interval(start_s, end_s, reason))

    def no_face(self, video: Path) -> NoFaceError:
        """The error for a `video`, none of whose frames shows a usable face that was chosen."""
        if not self.searched:
            part = "is in the part that is synced; give another --start or --end"
            return NoFaceError(f"{video}: none of its {self.frames} frames {part}", usage=True)
        if self.most_faces:
            return NoFaceError(f"{video}: shows faces, but never the chosen one; latentsync-trt faces shows them all")
        searched = f"any of the {self.searched} frames searched"
        if self.turned:
            none = f"no upright face in {searched}, but {self.turned} with one"
            return NoFaceError(f"{video}: {none} on its side or upside down; probably {_WRONG_TAG}")
        least = f"be at least {LEAST_WIDTH_PX} px wide and {LEAST_HEIGHT_PX} px high"
        return NoFaceError(f"{video}: no face in {searched}; a face must look at the camera, and {least}")
