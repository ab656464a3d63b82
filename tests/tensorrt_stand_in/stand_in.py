"""The stand-in as tests use it: processes that load it, their output, and their lines in its
log.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.tensorrt_stand_in.build import REPOSITORY, CannotBuild, built
from tests.tensorrt_stand_in.run import environment

_LIMIT_S = 600


@dataclass(frozen=True)
class Ended:
    """A process that has ended: exit code, what it printed, and the log of all processes that it
    started.
    """

    code: int
    out: str
    err: str
    log: tuple[str, ...] = field(repr=False)

    def count(self, pattern: str) -> int:
        """How many lines of the log begin so; a regular expression."""
        return sum(re.match(pattern, line) is not None for line in self.log)

    def numbers(self, pattern: str) -> list[int]:
        """The first group of each matching line."""
        return [int(found[1]) for line in self.log if (found := re.match(pattern, line))]


@dataclass(frozen=True)
class StandIn:
    """Libraries in `folder`; processes write to `work`."""

    folder: Path
    work: Path

    def variables(self, faults: str = "", **settings: str) -> dict[str, str]:
        """The environment of a process."""
        log = self.work / "stand_in.log"
        own = {
            "STAND_IN_LOG": str(log),
            "STAND_IN_FAULTS": faults,
            "LATENTSYNC_TRT_CACHE_DIR": str(self.cache),
        }
        return environment(self.folder, {**own, **settings})

    @property
    def cache(self) -> Path:
        """The engine cache of its processes."""
        return self.work / "engines für Ženy"

    def command(self, *arguments: str, faults: str = "", **settings: str) -> Ended:
        """Runs `latentsync-trt` with these arguments."""
        return self._run(["-m", "tests.tensorrt_stand_in.run", *arguments], faults, settings)

    def scenario(
        self,
        name: str,
        *,
        fault: str = "",
        machine: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> tuple[Any, Ended]:
        """Runs a function of `scenarios` in a process: what it returns, and that process."""
        command = ["-m", "tests.tensorrt_stand_in.scenarios", name, json.dumps(arguments)]
        ended = self._run(command, fault, machine or {})
        assert ended.code == 0, ended.err
        return json.loads(ended.out.splitlines()[-1]), ended

    def start(self, *arguments: str, faults: str = "", **settings: str) -> "subprocess.Popen[str]":
        """`latentsync-trt`, going on."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.tensorrt_stand_in.run", *arguments],
            env=self.variables(faults, **settings),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def log(self) -> tuple[str, ...]:
        """The log so far, without process numbers."""
        return tuple(line for _, line in self._numbered())

    def processes(self, line: str) -> list[int]:
        """Numbers of the processes that wrote this line."""
        return [int(number) for number, written in self._numbered() if written == line]

    def _numbered(self) -> list[tuple[str, str]]:
        path = self.work / "stand_in.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(number, line) for number, _, line in (line.partition(" ") for line in lines)]

    def _run(self, command: list[str], faults: str, settings: Mapping[str, str]) -> Ended:
        before = len(self.log())
        done = subprocess.run(
            [sys.executable, *command],
            env=self.variables(faults, **settings),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        return Ended(done.returncode, done.stdout, done.stderr, self.log()[before:])


def stand_in_at(work: Path) -> StandIn:
    """The stand-in, built if need be; skips the test where it cannot be, but not in CI beside the
    headers.
    """
    try:
        return StandIn(built(), work)
    except CannotBuild as error:
        if os.environ.get("CI") and (REPOSITORY.parent / "shared").is_dir():
            pytest.fail(f"the stand-in for TensorRT {error}")
        pytest.skip(f"the stand-in for TensorRT {error}")
