"""`latentsync-trt build`: engines ahead of time, so that the first `sync` does not wait for them."""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import build as build_options
from latentsync_trt.cli.options import bundle_option, options_from, provider_option
from latentsync_trt.config import NOT_FOR_BUILDS, RuntimeOptions
from latentsync_trt.errors import EngineBuildError

if TYPE_CHECKING:
    from latentsync_trt.runtime.sessions.engines import Engines


@dataclass(frozen=True, slots=True)
class Built:
    """One graph's line: whether its engine was built now, seconds of building (then or now) and of opening, its size,
    the share of its nodes that run on the provider, and its form."""

    graph: str
    built: bool
    build_s: float
    open_s: float
    bytes: int
    node_share: float
    form: str


@click.command("build")
@bundle_option
@provider_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option("--force", is_flag=True, help="Build engines that are there, too.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Graphs built at once; each takes its memory, and on one GPU they disturb TensorRT's timing of kernels.",
)
@options_from(RuntimeOptions, leave_out=NOT_FOR_BUILDS)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(
    bundle: str | None,
    provider: str,
    graphs: tuple[str, ...],
    force: bool,
    jobs: int,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Build a bundle's engines into the engine cache."""
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import say
    from latentsync_trt.runtime.cache.engine_cache import EngineCache, cache_folder
    from latentsync_trt.runtime.compiler.profiles import check_graphs
    from latentsync_trt.runtime.providers.select import select_provider
    from latentsync_trt.runtime.sessions.engines import Engines

    options = build_options(RuntimeOptions, fields)
    folder, why = find_bundle(bundle)
    loaded = Bundle.load(folder)
    silent = quiet or as_json
    notice = _ignore if silent else say
    check_graphs(loaded.manifest, graphs)
    cache = EngineCache(cache_folder(options.engine_cache), notice)
    engines = Engines(loaded, select_provider(provider, options.device), options, cache, notice)
    for text in engines.selection.notices():
        notice(text)
    wanted = graphs or tuple(loaded.manifest.graphs)
    notice(f"bundle {folder.name} ({why}), provider {engines.selection.name}, cache {cache.folder}")
    rows = []
    with _progress(len(wanted), hidden=silent) as on_done:
        for row in _build_all(engines, wanted, force=force, jobs=jobs):
            rows.append(row)
            on_done(row)
    if as_json:
        click.echo(json.dumps({"provider": engines.selection.name, "engines": [asdict(row) for row in rows]}))
    elif not quiet:
        total_s = sum(row.build_s for row in rows if row.built)
        count = sum(row.built for row in rows)
        click.echo(
            f"{cache.folder}: {count} of {len(rows)} engines built in {total_s:.1f} s, "
            f"{sum(row.bytes for row in rows) / 1e6:.1f} MB"
        )


def _build_all(engines: "Engines", graphs: tuple[str, ...], *, force: bool, jobs: int) -> Iterator[Built]:
    if jobs == 1 or len(graphs) == 1:
        for graph in graphs:
            yield _build_here(engines, graph, force=force)
        return
    with ThreadPoolExecutor(jobs) as workers:
        yield from workers.map(lambda graph: _build_elsewhere(engines, graph, force=force), graphs)


def _build_here(engines: "Engines", graph: str, *, force: bool) -> Built:
    """Builds and opens a graph: only an open session shows where its nodes run."""
    built = engines.build(graph, force=force).built
    opened = engines.open(graph)
    opened.session.close()
    seconds = round(opened.build_s, 2), round(opened.open_s, 2)
    return Built(graph, built or opened.built, *seconds, opened.size_bytes, opened.node_share, engines.form(graph))


def _build_elsewhere(engines: "Engines", graph: str, *, force: bool) -> Built:
    """The same in a process of its own."""
    from latentsync_trt.runtime.networks.background import build_command, failure_of

    done = subprocess.run(build_command(engines, (graph,), force=force), capture_output=True, check=False)
    if done.returncode:
        raise EngineBuildError(f"{graph}: {failure_of(done.stdout, done.stderr, done.returncode)}")
    (row,) = json.loads(done.stdout)["engines"]
    return Built(**row)


@contextmanager
def _progress(total: int, *, hidden: bool) -> Iterator[Callable[[Built], None]]:
    """A bar on stderr with a line for every engine that is ready; yields what to call with it."""
    if hidden:
        yield _ignore
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from latentsync_trt.cli.show import STDERR, say

    columns = (SpinnerColumn(), TextColumn("engines"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=STDERR, transient=True) as bar:
        task = bar.add_task("engines", total=total)

        def done(row: Built) -> None:
            what = f"built in {row.build_s:.1f} s" if row.built else "found in the cache"
            size = f"{row.bytes / 1e6:.1f} MB, {row.node_share:.0%} of nodes, {row.form} form"
            say(f"{row.graph}: {what}, opened in {row.open_s:.2f} s, {size}")
            bar.advance(task)

        yield done


def _ignore(_: object) -> None:
    """Nobody watches."""
