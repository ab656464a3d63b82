"""`latentsync-trt build`: builds engines ahead of time, so that the first `sync` does not wait for them."""

import json
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import (
    build,
    bundle_option,
    json_option,
    options_from,
    provider_option,
    quiet_option,
)
from latentsync_trt.config import NOT_FOR_BUILDS, RuntimeOptions

if TYPE_CHECKING:
    from latentsync_trt.runtime.providers.select import Selection
    from latentsync_trt.runtime.sessions.engines import Engines


@click.command("build")
@bundle_option
@provider_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option("--force", is_flag=True, help="Also build engines that are in the cache.")
@options_from(RuntimeOptions, leave_out=NOT_FOR_BUILDS)
@quiet_option
@json_option
def command(
    bundle: str | None,
    provider: str,
    graphs: tuple[str, ...],
    force: bool,
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
    from latentsync_trt.cli.show import STDERR, notices_to
    from latentsync_trt.runtime.cache.store import EngineCache, cache_folder
    from latentsync_trt.runtime.compiler.profiles import check_graphs
    from latentsync_trt.runtime.providers.select import select_devices
    from latentsync_trt.runtime.sessions.engines import Engines

    options, silent = build(RuntimeOptions, fields), quiet or as_json
    folder, why = find_bundle(bundle)
    loaded, say = Bundle.load(folder), notices_to(silent=silent)
    check_graphs(loaded.manifest, graphs)
    cache = EngineCache(cache_folder(options.engine_cache), say, options.engine_store)
    selected, left_out = select_devices(provider, options.device)
    # Engines fit all GPUs of a name and compute capability.
    kinds = {_kind(selection): selection for selection in reversed(selected)}
    engines = [
        Engines(loaded, selection, replace(options, device=selection.device_id), cache, say)
        for selection in reversed(kinds.values())
    ]
    first = engines[0].selection
    for text in (*left_out, *first.notices(), f"{describe_choice(folder, why)}, provider {first.name}"):
        say(text)
    todo = [*product((each for each in engines if each.compiled), graphs or loaded.manifest.graphs)]
    rows = []
    for each, graph in track(todo, "building engines", console=STDERR, transient=True, disable=silent):
        rows.append(_build(each, graph, force=force))
        say(_line(rows[-1]))
    if as_json:
        click.echo(json.dumps({"provider": first.name, "engines": rows}))
    elif not todo and not quiet:
        click.echo(f"provider {first.name} needs no engines: it opens the bundle's graphs directly")
    elif not quiet:
        built = [row["build_s"] for row in rows if row["built"]]
        size = f"{sum(row['bytes'] for row in rows) / 1e6:.1f} MB"
        click.echo(f"{cache.folder}: {len(built)} of {len(rows)} engines built in {sum(built):.1f} s, {size}")


def _kind(selection: "Selection") -> object:
    gpu = selection.gpu
    return selection.name, gpu and (gpu.name, gpu.capability)


def _build(engines: "Engines", graph: str, *, force: bool) -> dict[str, Any]:
    """Builds and opens a graph: only an open session shows where its nodes run."""
    built = engines.build(graph, force=force).built
    opened = engines.open(graph)
    opened.session.close()
    return {
        "graph": graph,
        "built": built or opened.built,
        "build_s": round(opened.build_s, 2),
        "open_s": round(opened.open_s, 2),
        "bytes": opened.size_bytes,
        "node_share": opened.node_share,
    }


def _line(row: dict[str, Any]) -> str:
    what = f"built in {row['build_s']:.1f} s" if row["built"] else "found in the cache"
    size = f"{row['bytes'] / 1e6:.1f} MB, {row['node_share']:.0%} of nodes"
    return f"{row['graph']}: {what}, opened in {row['open_s']:.2f} s, {size}"
