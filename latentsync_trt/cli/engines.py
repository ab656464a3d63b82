"""`latentsync-trt build` and `cache`: builds engines ahead of time; lists, checks and removes them."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.filesize import decimal

from latentsync_trt.cli import options
from latentsync_trt.cli.show import STDERR, notices_to, print_json, print_table
from latentsync_trt.config import NOT_FOR_BUILDS, RuntimeOptions
from latentsync_trt.runtime.cache import EngineCache, cache_folder
from latentsync_trt.runtime.entries import Choice, Entry, folder_bytes, select, total_bytes

if TYPE_CHECKING:
    from latentsync_trt.runtime.sessions.engines import Engines

_COLUMNS = ("graph", "bundle", "built for", "GPU", "sizes", "size", "build", "last used", "state")

common_options = options.combined(
    options.path_option(
        "--engine-cache",
        "folder",
        callback=lambda _context, _parameter, value: cache_folder(value).absolute(),
        help=next(spec for spec in fields(RuntimeOptions) if spec.name == "engine_cache").metadata["help"],
    ),
    options.json_option,
)


@click.command("build")
@options.bundle_option
@options.provider_option
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@click.option("--force", is_flag=True, help="Also build engines that are in the cache.")
@options.options_from(RuntimeOptions, leave_out=NOT_FOR_BUILDS)
@options.quiet_option
@options.json_option
def build(bundle: str | None, graphs: tuple[str, ...], force: bool, quiet: bool, as_json: bool, **fields: Any) -> None:
    """Only providers tensorrt and rtx need engines."""
    from rich.progress import track

    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.runtime.providers.select import select_devices
    from latentsync_trt.runtime.sessions.engines import Engines
    from latentsync_trt.runtime.sessions.profiles import check_graphs

    runtime, silent = options.build(RuntimeOptions, fields), quiet or as_json
    folder, why = find_bundle(bundle)
    loaded, say = Bundle.load(folder), notices_to(silent=silent)
    check_graphs(loaded.manifest, graphs)
    cache = EngineCache(cache_folder(runtime.engine_cache), say, runtime.engine_store)
    selected, left_out = select_devices(fields["provider"], runtime.device)
    # Engines fit all GPUs of a name and compute capability.
    kinds = {(on.name, on.gpu and (on.gpu.name, on.gpu.capability)): on for on in reversed(selected)}
    name = selected[0].name
    for text in (*left_out, *selected[0].notices(), f"{describe_choice(folder, why)}, provider {name}"):
        say(text)
    made = [Engines(loaded, on, replace(runtime, device=on.device_id), cache, say) for on in reversed(kinds.values())]
    todo = [*product((each for each in made if each.compiled), graphs or loaded.manifest.graphs)]
    rows = []
    for each, graph in track(todo, "building engines", console=STDERR, transient=True, disable=silent):
        row = _build(each, graph, force=force)
        rows.append(row)
        what = f"built in {row['build_s']:.1f} s" if row["built"] else "found in the cache"
        size = f"{row['bytes'] / 1e6:.1f} MB, {row['node_share']:.0%} of nodes"
        say(f"{graph}: {what}, opened in {row['open_s']:.2f} s, {size}")
    if as_json:
        print_json({"provider": name, "engines": rows})
    elif not todo and not quiet:
        click.echo(f"provider {name} needs no engines: it opens the bundle's graphs directly")
    elif not quiet:
        built = [row["build_s"] for row in rows if row["built"]]
        size = f"{sum(row['bytes'] for row in rows) / 1e6:.1f} MB"
        click.echo(f"{cache.folder}: {len(built)} of {len(rows)} engines built in {sum(built):.1f} s, {size}")


def _build(engines: "Engines", graph: str, *, force: bool) -> dict[str, Any]:
    """Builds and opens a graph: only an open session shows where its nodes run."""
    built = engines.build(graph, force=force).built
    opened = engines.open(graph)
    opened.session.close()
    times = {"build_s": round(opened.build_s, 2), "open_s": round(opened.open_s, 2)}
    facts = {"bytes": opened.size_bytes, "node_share": opened.node_share}
    return {"graph": graph, "built": built or opened.built, **times, **facts}


cache = click.RichGroup(name="cache")


@cache.command("ls")
@common_options
def list_engines(folder: Path, as_json: bool) -> None:
    """List engines: what each was built for, its size, and when it was last used."""
    _show(folder, EngineCache(folder).entries(), as_json=as_json)


@cache.command("verify")
@common_options
def verify_engines(folder: Path, as_json: bool) -> None:
    """Read every engine and compare it with its SHA-256; exit code 1 if one is damaged."""
    entries = EngineCache(folder).entries(hashes=True)
    _show(folder, entries, as_json=as_json)
    if any(entry.state == "damaged" for entry in entries):
        raise SystemExit(1)
    if not as_json:
        click.echo("no engine is damaged")


@cache.command("prune")
@common_options
@click.option("--max-gb", type=float, help="Remove the least recently used until this is left.")
@click.option("--damaged", is_flag=True, help="Remove damaged engines.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_engines(folder: Path, as_json: bool, max_gb: float | None, damaged: bool, dry_run: bool) -> None:
    """Remove engines that are too many or damaged. Builds in progress stay."""
    if max_gb is None and not damaged:
        raise click.UsageError("say what to remove: --max-gb or --damaged")
    if max_gb is not None and not 0 <= max_gb < inf:
        raise click.UsageError(f"--max-gb {max_gb}: not a number from 0")
    known = EngineCache(folder)
    chosen = select(known.entries(), max_bytes=None if max_gb is None else round(max_gb * 1e9), damaged=damaged)
    _report(folder, chosen if dry_run else known.remove_all(chosen), dry_run=dry_run, as_json=as_json)


@cache.command("clear")
@common_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clear_engines(folder: Path, as_json: bool, yes: bool) -> None:
    """Remove all engines and kernel timings. Builds in progress stay."""
    known = EngineCache(folder)
    chosen = [Choice(entry, "cleared") for entry in known.entries()]
    if chosen and not yes:
        size = decimal(total_bytes(choice.entry for choice in chosen))
        click.confirm(f"Remove {_count(chosen)} ({size}) from {folder}?", abort=True, err=True)
    chosen = known.remove_all(chosen)
    if known.shared.is_relative_to(folder):  # not where others can write it
        shutil.rmtree(known.shared, ignore_errors=True)
    _report(folder, chosen, dry_run=False, as_json=as_json)


def _report(folder: Path, chosen: Sequence[Choice], *, dry_run: bool, as_json: bool) -> None:
    """Prints what was removed and what stayed; exit code 1 if something could not be removed."""
    kept = [choice for choice in chosen if choice.refusal]
    removed = [choice for choice in chosen if not choice.refusal]
    freed_bytes = total_bytes(choice.entry for choice in removed)
    if as_json:
        content = {"folder": folder, "dry_run": dry_run, "freed_bytes": freed_bytes, "removed": removed, "kept": kept}
        print_json(content, indent=2)
    else:
        for choice in removed:
            click.echo(f"{choice.entry.label} ({decimal(choice.entry.size_bytes)}): {choice.reason}")
        done = "would remove" if dry_run else "removed"
        click.echo(f"{done} {_count(removed)} ({decimal(freed_bytes)}) from {folder}")
        for choice in kept:
            click.echo(f"error: {choice.entry.label} stays: {choice.refusal}", err=True)
    if kept:
        raise SystemExit(1)


def _show(folder: Path, entries: Sequence[Entry], *, as_json: bool) -> None:
    size_bytes = folder_bytes(folder)
    if as_json:
        rows = [{**asdict(entry), "state": entry.state} for entry in entries]
        print_json({"folder": folder, "total_bytes": size_bytes, "engines": rows}, indent=2)
        return
    if entries:
        print_table(_COLUMNS, map(_row, entries))
    for entry in entries:
        if entry.problem:
            click.echo(f"{entry.folder.name}: {entry.problem}")
    click.echo(f"{_count(entries)} in {folder}, {decimal(size_bytes)} with kernel timings")


def _row(entry: Entry) -> tuple[str, ...]:
    size, used_on, key = decimal(entry.size_bytes), entry.last_used_at.astimezone().date().isoformat(), entry.key
    if key is None:
        return entry.folder.name, "", "", "", "", size, "", used_on, entry.state
    sizes = [f"{name} {low}" + (f"-{high}" if high > low else "") for name, (low, _, high) in key.profile.items()]
    provider, gpu = f"{key.provider} {key.precision}", f"{key.gpu} ({key.compute_capability})"
    build = f"{entry.build_s:.1f} s"
    return key.graph, key.bundle, provider, gpu, ", ".join(sizes) or "fixed", size, build, used_on, entry.state


def _count(engines: Sequence[object]) -> str:
    return f"{len(engines)} engine{'' if len(engines) == 1 else 's'}"
