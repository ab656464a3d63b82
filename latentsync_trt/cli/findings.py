"""What `doctor` says, line by line."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "missing", "problem", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination. `cure` is what to run or to do; empty where nothing is wrong."""

    section: str
    level: Level
    text: str
    cure: str = ""
