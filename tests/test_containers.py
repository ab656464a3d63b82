"""`Dockerfile`, `compose.yaml` and the pages about them name what exists; scripts/fresh_debian.py
builds the image.
"""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from latentsync_trt.cli import main
from tests.conftest import REPOSITORY

SERVICES: dict[str, Any] = yaml.safe_load(
    (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
)["services"]
PAGES = {
    name: (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    for name in ("cluster.md", "serve.md")
}


def check_command_line(words: list[str]) -> None:
    """Parses what follows `latentsync-trt`; raises what click or the package raises for a wrong
    one.
    """
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, f"no command {words[0]}"
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("name", SERVICES)
def test_compose_runs_valid_commands(name: str) -> None:
    check_command_line(SERVICES[name]["command"])


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_are_valid(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(?:console|bash)\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    lines = [
        line
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines()
        if "latentsync-trt " in line
    ]
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line, comments=True)
        words = words[words.index("latentsync-trt") + 1 :]
        if words and not words[0].startswith("."):  # else the folder of `docker build`
            with chdir(tmp_path):
                check_command_line(words)
