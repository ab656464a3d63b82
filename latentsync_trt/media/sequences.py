"""Image sequences: numbered pictures in a folder, named by a pattern such as frames/%05d.png."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.paths import exists

_PATTERN = re.compile(r"([^%]*)%(?:0([1-9]))?d([^%]*)")


@dataclass(frozen=True, slots=True)
class ImageSequence:
    """Files whose names differ in a number of at least `digits` digits; `path` is the pattern."""

    path: Path
    before: str
    digits: int
    after: str

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """The sequence that `path` is a pattern of; None if it is the name of a file, or no pattern."""
        parts = _PATTERN.fullmatch(path.name)
        return None if parts is None or exists(path) else cls(path, parts[1], int(parts[2] or 1), parts[3])

    @property
    def ffmpeg_name(self) -> str:
        """The pattern as FFmpeg reads it, which takes every % in the names of folders for a number, too."""
        return str(self.path.parent / "x").replace("%", "%%")[:-1] + self.path.name

    def files(self) -> list[Path]:
        """The files in order; raises `MediaError` if there are none, or a number between two others is missing."""
        numbers = self._numbers()
        missing = next((number for number in range(min(numbers), max(numbers)) if number not in numbers), None)
        if missing is not None:
            following = self._name(min(number for number in numbers if number > missing))
            raise MediaError(f"{self.path.parent / self._name(missing)}: is missing, but {following} exists; add it")
        return [self.path.parent / self._name(number) for number in sorted(numbers)]

    def options(self) -> dict[str, str]:
        """FFmpeg's options to read the files, at the model's rate."""
        return {"start_number": str(min(self._numbers())), "start_number_range": "1", "framerate": str(MODEL_FPS)}

    def _numbers(self) -> set[int]:
        """The numbers of the files; raises `MediaError` if there are none."""
        try:
            names = [entry.name for entry in self.path.parent.iterdir()]
        except OSError as error:
            raise MediaError(f"{self.path}: its folder cannot be read: {error.strerror}", usage=True) from error
        any_digits = re.compile(re.escape(self.before) + r"([0-9]+)" + re.escape(self.after))
        texts = [found[1] for name in names if (found := any_digits.fullmatch(name))]
        numbers = {int(text) for text in texts if text == self._number(int(text))}
        if not numbers:
            digits = len(min(texts, default=""))
            similar = self.path.with_name(f"{self.before}%0{digits}d{self.after}")
            cure = f"; did you mean {similar}?" if 0 < digits < 10 else ""
            raise MediaError(f"{self.path}: no such pictures, as {self._name(1)}{cure}", usage=True)
        return numbers

    def _name(self, number: int) -> str:
        return f"{self.before}{self._number(number)}{self.after}"

    def _number(self, number: int) -> str:
        return f"{number:0{self.digits}d}"
