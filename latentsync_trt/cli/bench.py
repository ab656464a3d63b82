"""`latentsync-trt bench`: how fast, how much memory, how near to the best quality; and what changed since then."""

import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.cli.options import build, bundle_option, options_from
from latentsync_trt.config import RuntimeOptions, SyncOptions

if TYPE_CHECKING:
    from latentsync_trt.bench.rows import Results

_NOT_FOR_BENCH = ("build", "profile", "preset", "lossless")
"""A bench waits for its engines and times without a profile; it has presets of its own, and writes .mp4."""

_ROWS_SUFFIX, _REPORT_SUFFIX = ".json", ".html"


@click.command("bench")
@bundle_option
@options_from(BenchOptions)
@options_from(SyncOptions, leave_out=_NOT_FOR_BENCH)
@options_from(RuntimeOptions, leave_out=_NOT_FOR_BENCH)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="benchmarks",
    show_default=True,
    help="Where the rows go: a folder, or a file that ends in .json.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Where the report goes.  [default: beside the rows]")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A.json B.json",
    help="Measure nothing; show what changed from rows A to rows B.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(
    bundle: str | None,
    out: Path,
    html: Path | None,
    compare: tuple[Path, Path] | None,
    quiet: bool,
    **fields: Any,
) -> None:
    """Measure a bundle: graphs, loop, stages, whole clips; time, arithmetic, memory and quality."""
    if compare is not None:
        if html is not None:
            raise click.UsageError("--html: a comparison has no report; its table is printed")
        _compare(*compare)
        return
    from latentsync_trt.bench.suite import Record, run_bench
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import say

    options, runtime = build(BenchOptions, fields), build(RuntimeOptions, fields)
    sync = build(SyncOptions, {name: value for name, value in fields.items() if name != "preset"})
    folder, why = find_bundle(bundle)
    notice = _ignore if quiet else say
    notice(f"bundle {folder.name} ({why})")
    reference = None if options.reference_bundle is None else Bundle.load(find_bundle(options.reference_bundle)[0])
    files = _Files(out, html)
    record = Record(notice, files.keep, ["latentsync-trt", *sys.argv[1:]])
    results = run_bench(Bundle.load(folder), reference, options, runtime, sync, record=record)
    files.write_report(results)
    if not quiet:
        files.show(results)


class _Files:
    """Where rows and report go. The rows are written again after each, so that none is lost where a later one fails.

    Raises:
        OutputError: nothing can be written there, known before anything is measured.
    """

    def __init__(self, out: Path, html: Path | None) -> None:
        self._out, self._html = out, html
        _check_writable(out.parent if self._is_file else out)
        if html is not None:
            _check_writable(html.parent)

    @property
    def _is_file(self) -> bool:
        return self._out.suffix.lower() == _ROWS_SUFFIX

    def rows(self, results: "Results") -> Path:
        """The file of the rows."""
        return self._out if self._is_file else self._out / f"{_file_name(results)}{_ROWS_SUFFIX}"

    def report(self, results: "Results") -> Path:
        """The file of the report."""
        return self._html or self.rows(results).with_suffix(_REPORT_SUFFIX)

    def keep(self, results: "Results") -> None:
        """Writes the rows."""
        results.write(self.rows(results))

    def write_report(self, results: "Results") -> None:
        """Writes the report."""
        from latentsync_trt.bench.report import write_report

        write_report(results, self.report(results))

    def show(self, results: "Results") -> None:
        """Prints the table, and where all is."""
        from latentsync_trt.bench.table import show_rows

        show_rows(results)
        click.echo(f"{self.rows(results)}: {len(results.rows)} rows")
        click.echo(f"{self.report(results)}: the same with plots")


def _check_writable(folder: Path) -> None:
    """Makes `folder` if need be; raises `OutputError` if no file can be made in it."""
    from latentsync_trt.errors import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not tell
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror})") from error


def _compare(before: Path, after: Path) -> None:
    from latentsync_trt.bench.compare import compare
    from latentsync_trt.bench.rows import read_results
    from latentsync_trt.bench.table import show_comparison

    show_comparison(compare(read_results(before), read_results(after)), before.name, after.name)


def _file_name(results: "Results") -> str:
    """For example "bench-cuda-nvidia-h100-80gb-hbm3-1.6-512-fp16-20261121-120000"."""
    from latentsync_trt.bench.machine import slug

    providers = results.environment["providers"]
    machine = results.environment.get("gpu", results.environment["cpu"])
    measured_at = datetime.fromisoformat(results.environment["measured_at"])
    return slug(f"bench {providers} {machine} {results.bundle.name} {measured_at:%Y%m%d-%H%M%S}")


def _ignore(_: str) -> None:
    """Nobody watches."""
