"""`latentsync-trt build`: builds engines ahead of time, so that the first `sync` does not wait for them."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import build as build_options
from latentsync_trt.cli.options import bundle_option, options_from, provider_option
from latentsync_trt.config import NOT_FOR_BUILDS, RuntimeOptions
from latentsync_trt.errors import EngineBuildError

if TYPE_CHECKING:
    from latentsync_trt.runtime.providers.select import Selection
    from latentsync_trt.runtime.sessions.engines import Engines


@dataclass(frozen=True, slots=True)
class Built:
    """One graph's engine: whether it was built now, seconds of building (now or earlier) and opening, its size, and the
    share of its nodes that run on the provider."""

    graph: str
    built: bool
    build_s: float
    open_s: float
    bytes: int
    node_share: float

    def __str__(self) -> str:
        what = f"built in {self.build_s:.1f} s" if self.built else "found in the cache"
        size = f"{self.bytes / 1e6:.1f} MB, {self.node_share:.0%} of nodes"
        return f"{self.graph}: {what}, opened in {self.open_s:.2f} s, {size}"


@click.command("build")
@bundle_option
@provider_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option("--force", is_flag=True, help="Also build engines that are in the cache.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Graphs built at once; each takes its memory, and on one GPU they disturb TensorRT's timing of kernels.",
)
@options_from(RuntimeOptions, leave_out=NOT_FOR_BUILDS)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
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
    """Build a bundle's engines into the engine cache, for several GPUs once for each kind.

    Only providers tensorrt and rtx need engines.
    """
    from rich.progress import track

    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.cli.show import STDERR, say
    from latentsync_trt.runtime.cache.store import EngineCache, cache_folder
    from latentsync_trt.runtime.compiler.profiles import check_graphs
    from latentsync_trt.runtime.providers.select import select_devices
    from latentsync_trt.runtime.sessions.engines import Engines

    options = build_options(RuntimeOptions, fields)
    folder, why = find_bundle(bundle)
    loaded = Bundle.load(folder)
    silent = quiet or as_json
    notice = (lambda _: None) if silent else say
    check_graphs(loaded.manifest, graphs)
    cache = EngineCache(cache_folder(options.engine_cache), notice, options.engine_store)
    selected, left_out = select_devices(provider, options.device)
    kinds = [
        Engines(loaded, selection, replace(options, device=selection.device_id), cache, notice)
        for selection in _one_of_each_kind(selected)
    ]
    name = kinds[0].selection.name
    for text in (*left_out, *kinds[0].selection.notices(), f"{describe_choice(folder, why)}, provider {name}"):
        notice(text)
    compiled = [engines for engines in kinds if engines.compiled]
    wanted = graphs or tuple(loaded.manifest.graphs)
    building = chain.from_iterable(_build_all(engines, wanted, force=force, jobs=jobs) for engines in compiled)
    count = len(wanted) * len(compiled)
    rows = []
    for row in track(building, "building engines", count, console=STDERR, transient=True, disable=silent):
        notice(str(row))
        rows.append(row)
    if as_json:
        click.echo(json.dumps({"provider": name, "engines": [asdict(row) for row in rows]}))
    elif not compiled and not quiet:
        click.echo(f"provider {name} needs no engines: it opens the bundle's graphs directly")
    elif not quiet:
        total_s, count = sum(row.build_s for row in rows if row.built), sum(row.built for row in rows)
        size = f"{sum(row.bytes for row in rows) / 1e6:.1f} MB"
        click.echo(f"{cache.folder}: {count} of {len(rows)} engines built in {total_s:.1f} s, {size}")


def _one_of_each_kind(selected: "Iterable[Selection]") -> "list[Selection]":
    """Engines fit all GPUs of a name and compute capability."""
    kinds: dict[object, Selection] = {}
    for each in selected:
        kinds.setdefault((each.name, each.gpu and (each.gpu.name, each.gpu.capability)), each)
    return list(kinds.values())


def _build_all(engines: "Engines", graphs: tuple[str, ...], *, force: bool, jobs: int) -> Iterator[Built]:
    if jobs == 1 or len(graphs) <= 1:
        yield from (_build_here(engines, graph, force=force) for graph in graphs)
        return
    with ThreadPoolExecutor(jobs) as workers:
        yield from workers.map(lambda graph: _build_elsewhere(engines, graph, force=force), graphs)


def _build_here(engines: "Engines", graph: str, *, force: bool) -> Built:
    """Builds and opens a graph: only an open session shows where its nodes run."""
    built = engines.build(graph, force=force).built
    opened = engines.open(graph)
    opened.session.close()
    seconds = round(opened.build_s, 2), round(opened.open_s, 2)
    return Built(graph, built or opened.built, *seconds, opened.size_bytes, opened.node_share)


def _build_elsewhere(engines: "Engines", graph: str, *, force: bool) -> Built:
    """Builds and opens a graph in its own process."""
    from latentsync_trt.runtime.networks.background import BuildProcess, build_command

    out, problem = BuildProcess(build_command(engines, (graph,), force=force)).wait()
    if problem:
        raise EngineBuildError(f"{graph}: {problem}")
    return Built(**json.loads(out)["engines"][0])
