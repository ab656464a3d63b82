"""`latentsync-trt build` and `cache`: builds engines ahead of time; lists, checks and removes
them.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.filesize import decimal

from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, print_json, print_table, progress_bar
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.files import remove_leftovers
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.entries import Entry, entries_to_remove, folder_bytes
from latentsync_trt.types import Progress

if TYPE_CHECKING:
    from latentsync_trt.runtime.engines.session_factory import SessionFactory

_NOT_FOR_BUILD = ("build", "cuda_graph", "low_memory", "syncnet", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    bundle: str | None = flags.bundle_option()
    provider: str = flags.provider_option()
    runtime: RuntimeOptions = flags.options_of(leave_out=_NOT_FOR_BUILD)
    quiet: bool = flags.quiet_option()


@click.command("build")
@flags.takes(BuildRequest)
def build(request: BuildRequest) -> None:
    """Only provider tensorrt needs engines."""
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.runtime.engines.session_factory import SessionFactory
    from latentsync_trt.runtime.providers.choice import select_provider

    runtime = request.runtime
    folder, why = find_bundle(request.bundle)
    bundle = Bundle.load(folder)
    on_notice = notices_to(silent=request.quiet)
    selection = select_provider(request.provider, runtime.one_device)
    used = selection.provider.builds
    engine_cache = EngineCache(cache_folder(runtime.engine_cache, used=used), on_notice)
    for text in selection.notices():
        on_notice(text)
    on_notice(f"{describe_choice(folder, why)}, provider {selection.name}")
    factory = SessionFactory(bundle, selection, runtime, engine_cache)
    if factory.compiled:
        summary = f"{engine_cache.folder}: {_build_engines(factory, request)}"
    else:
        summary = (
            f"provider {selection.name} needs no engines: it opens the bundle's graphs directly"
        )
    if not request.quiet:
        echo(summary)


def _build_engines(factory: "SessionFactory", request: BuildRequest) -> str:
    """Builds what the cache lacks; returns how many that were."""
    on_notice = notices_to(silent=request.quiet)
    graphs = [*factory.bundle.manifest.graphs]
    built_s: list[float] = []
    with progress_bar(hidden=request.quiet) as on_progress:
        for number, graph in enumerate(graphs):
            on_progress(Progress("building engines", number, len(graphs)))
            engine = factory.open(graph)
            engine.session.close()  # only an open one shows where its nodes run
            costs = engine.costs
            origin = "found in the cache"
            if costs.built:
                built_s.append(costs.build_s)
                origin = f"built in {costs.build_s:.1f} s"
            size = f"{engine.size_bytes / 1e6:.1f} MB, {costs.node_share:.0%} of nodes"
            on_notice(f"{graph}: {origin}, opened in {costs.open_s:.2f} s, {size}")
    return f"{len(built_s)} of {len(graphs)} engines built in {sum(built_s):.1f} s"


cache = click.RichGroup(name="cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    engine_cache: Path | None = flags.command_field(
        None, RuntimeOptions.__dataclass_fields__["engine_cache"].metadata["help"], written=True
    )

    @property
    def folder(self) -> Path:
        return cache_folder(self.engine_cache).absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest(CacheRequest):
    verify: bool = flags.command_field(False, "Read every engine and compare it with its SHA-256.")
    as_json: bool = flags.json_option()


@cache.command("ls")
@flags.takes(ListRequest)
def list_engines(request: ListRequest) -> None:
    """List engines: what each was built for, its size, and when it was last used; exit code 1 if
    --verify finds a damaged one.
    """
    folder = request.folder
    entries = EngineCache(folder).entries(hashes=request.verify)
    size_bytes = folder_bytes(folder)
    if request.as_json:
        rows = [{**asdict(entry), "state": entry.state} for entry in entries]
        print_json({"folder": folder, "total_bytes": size_bytes, "engines": rows}, indent=2)
    else:
        if entries:
            print_table(_ENGINE_HEADS, map(_cells_of_engine, entries))
        echo(f"engines: {len(entries)} in {folder}, {decimal(size_bytes)}")
    if request.verify and any(entry.state == "damaged" for entry in entries):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest(CacheRequest):
    max_gb: float = flags.command_field(
        None, "Keep this much: what was used last.", required=True, type=click.FloatRange(0)
    )


@cache.command("prune")
@flags.takes(PruneRequest)
def prune_engines(request: PruneRequest) -> None:
    """Remove engines that are too many, damaged ones first. Builds in progress stay. Exit code 1:
    some could not be removed.
    """
    folder = request.folder
    engine_cache = EngineCache(folder)
    entries = engine_cache.entries()
    chosen = entries_to_remove(entries, round(request.max_gb * 1e9))
    remove_leftovers(folder)
    removed = []
    for entry in chosen:
        refusal = engine_cache.remove(entry)
        if refusal:
            echo(f"error: {entry.label} stays: {refusal}", err=True)
        else:
            removed.append(entry)
            echo(f"{entry.label} ({decimal(entry.size_bytes)})")
    size = decimal(sum(entry.size_bytes for entry in removed))
    echo(f"removed {len(removed)} of {len(entries)} engines ({size}) from {folder}")
    if len(removed) < len(chosen):
        raise SystemExit(1)


_ENGINE_HEADS = (
    *("graph", "bundle", "built for", "GPU", "sizes"),
    *("size", "build", "last used", "state"),
)


def _cells_of_engine(entry: Entry) -> tuple[str, ...]:
    """Returns a row of the table below `_ENGINE_HEADS`."""
    size = decimal(entry.size_bytes)
    used_on = entry.last_used_at.astimezone().date().isoformat()
    state = entry.problem or entry.state
    key = entry.key
    if key is None:
        return entry.folder.name, "", "", "", "", size, "", used_on, state
    sizes = []
    for name, (low, _, high) in key.profile.items():
        shape = f"{name} {low}"
        if high > low:
            shape += f"-{high}"
        sizes.append(shape)
    return (
        key.graph,
        key.bundle,
        f"{key.provider} {key.precision}",
        f"{key.gpu} ({key.compute_capability})",
        ", ".join(sizes) or "fixed",
        size,
        f"{entry.build_s:.1f} s",
        used_on,
        state,
    )
