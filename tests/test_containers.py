"""`Dockerfile`, `compose.yaml` and the pages about them name what exists; scripts/fresh_debian.py builds the image."""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from latentsync_trt.batch.job_file import read_rows
from latentsync_trt.cli import main
from latentsync_trt.config import SyncOptions
from tests.conftest import REPOSITORY

COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
PAGES = {name: (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("cluster.md", "serve.md")}


def check_command_line(words: list[str]) -> None:
    """Parses what follows `latentsync-trt`; raises what click or the package raises for a wrong one."""
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, f"no command {words[0]}"
    command.make_context(words[0], words[1:])


def code_of(page: str) -> list[str]:
    """The lines of a page's code blocks, each command in one."""
    blocks = re.findall(r"^```(?:console|bash)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_compose_runs_valid_commands_on_volumes_that_exist(name: str) -> None:
    service = SERVICES[name]
    check_command_line(service["command"])
    for volume in service["volumes"]:
        source, target = re.fullmatch(r"(\$\{.*?\}|[^:]+):(/\w+)(?::ro)?", volume).groups()  # type: ignore[union-attr]
        assert source in COMPOSE["volumes"] or source.startswith((".", "${CLIPS:-./"))
        assert any(word.startswith(target) for word in service["command"]) or target in ("/checkpoints", "/cache")


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_are_valid(page: str, tmp_path: Path) -> None:
    lines = [line for line in code_of(PAGES[page]) if "latentsync-trt " in line]
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line, comments=True)
        words = words[words.index("latentsync-trt") + 1 :]
        if words and not words[0].startswith("."):  # else the folder of `docker build`
            with chdir(tmp_path):
                check_command_line(words)


def test_the_job_file_of_the_page_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```csv\n(.*?)^```", PAGES["cluster.md"], re.MULTILINE | re.DOTALL)
    (tmp_path / "jobs.csv").write_text(text, encoding="utf-8")
    jobs = read_rows(tmp_path / "jobs.csv", SyncOptions())
    assert not any(job.problem for job in jobs)
    assert [len(job.task.options.speaker) for job in jobs] == [0, 2, 0]
