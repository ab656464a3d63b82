"""`latentsync-trt build` and `cache`: builds engines ahead of time; lists, checks and removes
them.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

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

cache_option = flags.path_option(
    "--engine-cache",
    "folder",
    written=True,
    callback=lambda _context, _parameter, value: cache_folder(value).absolute(),
    help=next(spec for spec in fields(RuntimeOptions) if spec.name == "engine_cache").metadata[
        "help"
    ],
)


@click.command("build")
@flags.bundle_option
@flags.provider_option
@flags.options_from(
    RuntimeOptions, leave_out=("build", "cuda_graph", "low_memory", "syncnet", "verify")
)
@flags.quiet_option
def build(bundle: str | None, quiet: bool, **fields: Any) -> None:
    """Only provider tensorrt needs engines."""
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.runtime.engines.session_factory import SessionFactory
    from latentsync_trt.runtime.providers.choice import select_provider

    runtime = flags.build(RuntimeOptions, fields)
    folder, why = find_bundle(bundle)
    loaded = Bundle.load(folder)
    say = notices_to(silent=quiet)
    selection = select_provider(fields["provider"], runtime.one_device)
    cache = EngineCache(cache_folder(runtime.engine_cache, used=selection.provider.builds), say)
    for text in (
        *selection.notices(),
        f"{describe_choice(folder, why)}, provider {selection.name}",
    ):
        say(text)
    factory = SessionFactory(loaded, selection, runtime, cache)
    todo = [*loaded.manifest.graphs] if factory.compiled else []
    built_s: list[float] = []
    with progress_bar(hidden=quiet) as move:
        for number, graph in enumerate(todo):
            move(Progress("building engines", number, len(todo)))
            engine = factory.open(graph)
            engine.session.close()  # only an open one shows where its nodes run
            costs = engine.costs
            built_s += [costs.build_s] if costs.built else []
            if costs.built:
                what = f"built in {costs.build_s:.1f} s"
            else:
                what = "found in the cache"
            size = f"{engine.size_bytes / 1e6:.1f} MB, {costs.node_share:.0%} of nodes"
            say(f"{graph}: {what}, opened in {costs.open_s:.2f} s, {size}")
    if not todo and not quiet:
        echo(f"provider {selection.name} needs no engines: it opens the bundle's graphs directly")
    elif not quiet:
        echo(f"{cache.folder}: {len(built_s)} of {len(todo)} engines built in {sum(built_s):.1f} s")


cache = click.RichGroup(name="cache")


@cache.command("ls")
@cache_option
@click.option("--verify", is_flag=True, help="Read every engine and compare it with its SHA-256.")
@flags.json_option
def list_engines(folder: Path, verify: bool, as_json: bool) -> None:
    """List engines: what each was built for, its size, and when it was last used; exit code 1 if
    --verify finds a damaged one.
    """
    entries = EngineCache(folder).entries(hashes=verify)
    size_bytes = folder_bytes(folder)
    if as_json:
        rows = [{**asdict(entry), "state": entry.state} for entry in entries]
        print_json({"folder": folder, "total_bytes": size_bytes, "engines": rows}, indent=2)
    else:
        if entries:
            heads = (
                "graph",
                "bundle",
                "built for",
                "GPU",
                "sizes",
                "size",
                "build",
                "last used",
                "state",
            )
            print_table(heads, map(_row, entries))
        echo(f"engines: {len(entries)} in {folder}, {decimal(size_bytes)}")
    if verify and any(entry.state == "damaged" for entry in entries):
        raise SystemExit(1)


@cache.command("prune")
@cache_option
@click.option(
    "--max-gb", type=click.FloatRange(0), required=True, help="Keep this much: what was used last."
)
def prune_engines(folder: Path, max_gb: float) -> None:
    """Remove engines that are too many, damaged ones first. Builds in progress stay. Exit code 1:
    some could not be removed.
    """
    known = EngineCache(folder)
    removed = list[Entry]()
    entries = known.entries()
    chosen = entries_to_remove(entries, round(max_gb * 1e9))
    remove_leftovers(folder)
    for entry in chosen:
        refusal = known.remove(entry)
        removed += [] if refusal else [entry]
        if refusal:
            label = f"error: {entry.label} stays: {refusal}"
        else:
            label = f"{entry.label} ({decimal(entry.size_bytes)})"
        echo(label, err=bool(refusal))
    size = decimal(sum(entry.size_bytes for entry in removed))
    echo(f"removed {len(removed)} of {len(entries)} engines ({size}) from {folder}")
    if len(removed) < len(chosen):
        raise SystemExit(1)


def _row(entry: Entry) -> tuple[str, ...]:
    size = decimal(entry.size_bytes)
    used_on = entry.last_used_at.astimezone().date().isoformat()
    key = entry.key
    if key is None:
        return entry.folder.name, "", "", "", "", size, "", used_on, entry.problem or entry.state
    sizes = [
        f"{name} {low}" + (f"-{high}" if high > low else "")
        for name, (low, _, high) in key.profile.items()
    ]
    provider = f"{key.provider} {key.precision}"
    gpu = f"{key.gpu} ({key.compute_capability})"
    build = f"{entry.build_s:.1f} s"
    state = entry.problem or entry.state
    return (
        key.graph,
        key.bundle,
        provider,
        gpu,
        ", ".join(sizes) or "fixed",
        size,
        build,
        used_on,
        state,
    )
