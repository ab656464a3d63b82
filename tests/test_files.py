"""Temporary folders: told from those of living processes, removed by whoever comes next, and
nothing else is.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt.bundle.manifest import MANIFEST_NAME
from latentsync_trt.errors import OutputError
from latentsync_trt.files import (
    GO_ON,
    KEPT_NAME,
    PREFIX,
    publish,
    published_folder,
    remove_all,
    remove_leftovers,
    temporary_folder,
    whole_file,
    work_folder,
    work_folder_of,
)

HOLDING = """
import sys, time
from pathlib import Path
from latentsync_trt.files import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "graphs").mkdir()
    (folder / "graphs" / "unet.weights").write_bytes(bytes(5000))
    print(folder, flush=True)
    time.sleep(600)
"""


@contextmanager
def held(parent: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Another process, and its temporary folder in `parent`."""
    command = [sys.executable, "-c", HOLDING, str(parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def killed(parent: Path) -> Path:
    """The temporary folder of a process that was killed."""
    with held(parent) as (process, folder):
        process.kill()
        process.wait()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_folder(tmp_path) as folder:
        (folder / "part" / "of it").mkdir(parents=True)
        assert names(tmp_path) == [folder.name]
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_what_a_killed_process_leaves_goes_with_the_next_run(tmp_path: Path) -> None:
    with held(tmp_path) as (_, living):
        dead = killed(tmp_path)
        with temporary_folder(tmp_path) as folder:
            assert names(tmp_path) == sorted([living.name, folder.name])
        assert not dead.exists()
        assert (living / "graphs" / "unet.weights").stat().st_size == 5000


def test_what_only_looks_like_ours_stays(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}holiday").mkdir()
    (tmp_path / f"{PREFIX}holiday" / "photo.jpg").touch()
    (tmp_path / f"{PREFIX}notes").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dead = killed(elsewhere)
    if os.name != "nt":
        (tmp_path / f"{PREFIX}link").symlink_to(dead)
    before = names(tmp_path)
    for place in (tmp_path, tmp_path / "missing"):
        remove_leftovers(place)
    assert names(tmp_path) == before
    assert names(dead) == ["graphs"]


def test_a_network_disk_without_locks_can_be_written(tmp_path: Path) -> None:
    """Here a folder is in the lock's place."""
    output = tmp_path / "out.mp4"
    (work_folder_of(output) / ".in-use").mkdir(parents=True)
    with work_folder(output) as folder:
        (folder / KEPT_NAME).touch()
    assert KEPT_NAME in names(folder)


def test_many_processes_make_and_remove_folders_at_once(tmp_path: Path) -> None:
    """Each looks for leftovers while others make folders."""
    code = (
        "import sys; from pathlib import Path; from latentsync_trt.files import temporary_folder\n"
        "for number in range(60):\n"
        "    with temporary_folder(Path(sys.argv[1])) as folder:\n"
        "        (folder / 'file').write_text('here'); "
        "assert (folder / 'file').read_text() == 'here'\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(3)
    ]
    assert [(process.communicate()[0], process.returncode) for process in processes] == [
        (b"", 0)
    ] * 3
    assert names(tmp_path) == []


def test_finished_parts_stay_whoever_ends(tmp_path: Path) -> None:
    """The block, the process, and the next one that looks for leftovers; others go."""
    output = tmp_path / "out.mp4"
    with pytest.raises(KeyboardInterrupt) as error, work_folder(output) as folder:
        (folder / KEPT_NAME).touch()
        with work_folder(tmp_path / "other.mp4"), temporary_folder(tmp_path):
            remove_all()
            assert names(tmp_path) == [folder.name]
        assert KEPT_NAME in names(folder)
        raise KeyboardInterrupt
    assert error.value.__notes__ == [GO_ON]
    with temporary_folder(tmp_path):
        assert (folder / KEPT_NAME).exists()
    with pytest.raises(KeyboardInterrupt) as error, work_folder(output) as again:
        assert again == folder
        (folder / KEPT_NAME).unlink()
        raise KeyboardInterrupt
    assert not hasattr(error.value, "__notes__")
    assert names(tmp_path) == []


@pytest.mark.parametrize("make", ["work_folder", "temporary_folder"])
def test_a_folder_that_is_being_made_goes_with_its_process(tmp_path: Path, make: str) -> None:
    """A child is asked to end while a thread is between making a folder and noting that."""
    code = f"""
import sys, threading, time
from pathlib import Path
from latentsync_trt.child_main import end_process
from latentsync_trt.files import temporary_folder, work_folder

is_made = threading.Event()
mkdir = Path.mkdir

def make_slowly(*arguments, **more):
    mkdir(*arguments, **more)
    is_made.set()
    time.sleep(0.5)

def write():
    with {make}(Path(sys.argv[1])):
        time.sleep(60)

Path.mkdir = make_slowly
threading.Thread(target=write, daemon=True).start()
is_made.wait()
end_process(3)
"""
    place = tmp_path / "out.mp4" if make == "work_folder" else tmp_path
    assert subprocess.run([sys.executable, "-c", code, str(place)]).returncode == 3
    assert names(tmp_path) == []


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    with whole_file(path) as part:
        part.write_text("first")
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_text("second, cut sh")
        raise KeyboardInterrupt
    assert (path.read_text(), names(tmp_path)) == ("first", ["rows.json"])


def test_what_cannot_be_put_in_place_is_kept_beside_it(tmp_path: Path) -> None:
    """A file where it took long to make, and a bundle whose folder cannot be moved away, as a mount
    point.
    """
    path = tmp_path / "faces.json"
    path.mkdir()
    for keep in (False, True):
        message = r"kept as .*faces-1\.json" if keep else "directory"
        with pytest.raises(OSError, match=message), whole_file(path, keep=keep) as part:
            part.write_text("finished")
    assert (tmp_path / "faces-1.json").read_text() == "finished"
    bundle = tmp_path / "1.6-512-fp16"
    bundle.mkdir()
    with (
        pytest.raises(OutputError, match=r"kept as .*-fp16-1\)"),
        published_folder(bundle) as staged,
    ):
        (staged / MANIFEST_NAME).write_text("finished")
        (staged.parent / "replaced" / "in the way").mkdir(parents=True)
    assert (tmp_path / "1.6-512-fp16-1" / MANIFEST_NAME).read_text() == "finished"
    assert names(tmp_path) == ["1.6-512-fp16", "1.6-512-fp16-1", "faces-1.json", "faces.json"]


LINKS = pytest.mark.skipif(os.name == "nt", reason="needs a right on Windows")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """As `whole_file`, a file in a folder that is published."""
    with published_folder(path.parent) as folder:
        yield folder / path.name


@LINKS
@pytest.mark.parametrize("write", [whole_file, partial(whole_file, keep=True), whole_folder])
def test_what_is_written_through_a_link_is_where_that_leads(tmp_path: Path, write: Any) -> None:
    """Also where nothing is yet, and with the permissions of what is replaced."""
    disk = tmp_path / "disk"
    disk.mkdir()
    link = tmp_path / "out.txt"
    real = disk / "real.txt"
    if write is whole_folder:
        link = tmp_path / "bundle" / "out.txt"
        real = disk / "real" / "out.txt"
    named, end = (link, real) if write is not whole_folder else (link.parent, real.parent)
    (disk / "named").symlink_to(end)
    named.symlink_to(disk / "named")
    for text in ("first", "second"):
        with write(link) as part:
            assert part.is_relative_to(disk)
            part.write_text(text)
        assert (named.readlink(), real.read_text()) == (disk / "named", text)
        mode = end.stat().st_mode & 0o777
        assert mode == 0o700 or text == "first"
        end.chmod(0o700)
    assert names(tmp_path) == sorted(["disk", named.name])
    assert names(disk) == sorted(["named", end.name])


@LINKS
def test_a_link_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "out.json"
    loop.symlink_to(loop)
    with pytest.raises(OutputError, match="leads back to itself"), whole_file(loop):
        pass
    assert names(tmp_path) == ["out.json"]


class Interrupted(type(Path())):  # type: ignore[misc]
    def rename(self, target: object) -> Path:
        raise KeyboardInterrupt


def test_an_interruption_while_a_bundle_is_replaced_keeps_the_old_one(tmp_path: Path) -> None:
    staged = Interrupted(tmp_path / "staged")
    target = tmp_path / "1.6-512-fp16"
    staged.mkdir()
    target.mkdir()
    (target / MANIFEST_NAME).write_text("old")
    with pytest.raises(KeyboardInterrupt):
        publish(staged, target, tmp_path / "replaced")
    assert (target / MANIFEST_NAME).read_text() == "old"
    assert names(tmp_path) == [target.name, "staged"]
