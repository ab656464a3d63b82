"""Checks what `make dist` built: the source distribution holds what git tracks, the wheel the
package and its licenses.

python scripts/check_dist.py dist
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE = "latentsync_trt/"
LICENSES = {"licenses/LICENSE", "licenses/NOTICE"}
_OF_SETUPTOOLS = ("PKG-INFO", "setup.cfg", "latentsync_trt.egg-info/")


def main(folder: Path) -> str:
    """The differences, a line each; empty if there are none."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout
    tracked = {name for name in listed.split("\0") if Path(name).is_file()}
    with tarfile.open(sdist) as archive:
        members = [member.name.partition("/")[2] for member in archive if member.isfile()]
    sources = {name for name in members if not name.startswith(_OF_SETUPTOOLS)}
    with zipfile.ZipFile(wheel) as archive:
        installed = set(archive.namelist())
    about = {name for name in installed if name.partition("/")[0].endswith(".dist-info")}
    package = {name for name in tracked if name.startswith(PACKAGE)}
    return "".join(
        [
            *_differences(sdist, sources, tracked),
            *_differences(wheel, installed - about, package),
            *_differences(wheel, LICENSES & {name.partition("/")[2] for name in about}, LICENSES),
        ]
    )


def _differences(archive: Path, found: set[str], wanted: set[str]) -> list[str]:
    extra = [
        f"{archive}: contains {name}, which does not belong there\n"
        for name in sorted(found - wanted)
    ]
    return extra + [f"{archive}: lacks {name}\n" for name in sorted(wanted - found)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) or None)
