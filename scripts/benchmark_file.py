"""Writes what a script measured as a file of `benchmarks/`."""

import json
from datetime import UTC, datetime
from pathlib import Path


def write_benchmark(path: Path, command: str, **content: object) -> None:
    """Writes the content by name, after the command that measures it and the day."""
    head = {"what": command, "measured_at": str(datetime.now(UTC).date())}
    path.write_text(json.dumps(head | content, indent=1) + "\n", "utf-8")
