"""Builds the Dockerfile's image in fresh Debian roots, without Docker, and runs commands in it.

    python scripts/fresh_debian.py build ROOTS --build-arg GPU=none
    python scripts/fresh_debian.py run ROOTS -- latentsync-trt --version

`build` runs the Dockerfile's own instructions, one folder below ROOTS for each stage, and prints
the size and time of each; `run` starts a command in the last one, with its user, variables and
folder. Needs Linux, root, the network and mmdebstrap, whose root stands for the base image. `PIP_*`
variables reach `build` only.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MIRROR = "http://deb.debian.org/debian"

# What the official slim image leaves out, too, else sizes differ.
SLIM = [
    "--variant=minbase",
    '--aptopt=Dir::Cache { pkgcache ""; srcpkgcache ""; };',
    '--aptopt=DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };',
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Mounts end with the process, whose namespace they are in.
ENTER = """
cd "$1"; binds="$4"; mount -t proc proc proc; mount --rbind /dev dev
touch etc/resolv.conf; mount --bind /etc/resolv.conf etc/resolv.conf
for bind in $binds; do mkdir -p ".$bind"; mount --rbind -o ro "$bind" ".$bind"; done
exec chroot --userspec="$2" . env -i --chdir="$3" "${@:5}"
"""


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, as ("RUN", "apt-get update && …")."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    return [tuple(line.split(maxsplit=1)) for line in re.sub(r"\\\n\s*", "", lines).splitlines()]


class Image:
    """Folders of the stages, and what the instructions so far say."""

    def __init__(
        self, roots: Path, arguments: dict[str, str], binds: list[str], *, build: bool
    ) -> None:
        self.roots = roots
        self.arguments = arguments
        self.binds = binds
        self.build = build

    def apply(self, keyword: str, rest: str) -> None:
        """One instruction; those that describe the image, such as EXPOSE, change nothing here."""
        match keyword:
            case "FROM":
                self.begin(*([*rest.split(" AS "), "image"])[:2])
            case "ARG" | "ENV":
                values = dict(value.split("=", 1) for value in shlex.split(rest))
                arguments = self.arguments if keyword == "ARG" else {}
                self.variables |= {
                    name: arguments.get(name, value) for name, value in values.items()
                }
            case "WORKDIR":
                self.folder = rest
                (self.root / rest[1:]).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = rest
            case "COPY" if self.build:
                self.copy(rest.split())
            case "RUN" if self.build:
                pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
                if self.run(["/bin/sh", "-c", rest], pip):
                    sys.exit(f"failed: RUN {rest}")

    def begin(self, base: str, name: str) -> None:
        """A stage: a copy of an earlier one, or a fresh system."""
        self.root = self.roots / name
        self.user = "0"
        self.folder = "/"
        self.variables = {"PATH": PATH}
        if self.build and (self.roots / base).is_dir():
            subprocess.run(["cp", "-a", "--reflink=auto", self.roots / base, self.root], check=True)
        elif self.build:
            suite = base.partition("@")[0].removeprefix("debian:").removesuffix("-slim")
            subprocess.run(["mmdebstrap", "--quiet", *SLIM, suite, self.root, MIRROR], check=True)

    def copy(self, words: list[str]) -> None:
        """Files of the repository, or of another stage."""
        *sources, target = words
        copied = sources[0].startswith("--from=")
        if copied:
            origin = self.roots / sources.pop(0).removeprefix("--from=")
        else:
            origin = REPOSITORY
        place = self.root / (self.folder + "/" + target if target[0] != "/" else target).lstrip("/")
        for source in (origin / source.lstrip("/") for source in sources):
            if source.is_dir():
                ignore = None if copied else shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy2(source, place)

    def run(self, command: list[str], more: dict[str, str] | None = None) -> int:
        """Runs a command in this stage; the network is the machine's. Returns its exit code."""
        variables = [
            f"{name}={value}" for name, value in {**self.variables, **(more or {})}.items()
        ]
        enter = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-ec",
            ENTER,
            "bash",
        ]
        values = [str(self.root), self.user, self.folder, " ".join(self.binds), *variables]
        return subprocess.run([*enter, *values, *command], check=False).returncode

    def size_mb(self) -> float:
        """What this stage takes on the disk."""
        listed = subprocess.run(
            ["du", "-sxB1", self.root], check=True, capture_output=True, text=True
        ).stdout
        return int(listed.split()[0]) / 1e6


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("roots", type=Path)
    parser.add_argument("command", nargs="*", help="of `run`")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="FOLDER", help="seen inside, too, read-only"
    )
    options = parser.parse_args()
    if (options.what == "build") == options.roots.exists():
        sys.exit(
            f"{options.roots}: "
            f"{'exists; name a new folder' if options.what == 'build' else 'build it first'}"
        )
    options.roots.mkdir(parents=True, exist_ok=True)
    arguments = dict(argument.split("=", 1) for argument in options.build_arg)
    image = Image(options.roots.resolve(), arguments, options.bind, build=options.what == "build")
    before = 0.0
    for keyword, rest in instructions():
        started = time.monotonic()
        image.apply(keyword, rest)
        if image.build and keyword in ("FROM", "RUN", "COPY"):
            after = image.size_mb()
            seconds = time.monotonic() - started
            grown = after - (0 if keyword == "FROM" else before)
            print(f"{seconds:6.1f} s {grown:8.1f} MB  {keyword} {rest[:90]}", flush=True)
            before = after
    if not image.build:
        sys.exit(image.run(options.command))


if __name__ == "__main__":
    main()
