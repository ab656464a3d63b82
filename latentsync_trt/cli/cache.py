"""`latentsync-trt cache`: list, check and remove engines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from rich.filesize import decimal

from latentsync_trt.cli.options import LocalPath, combined, json_option
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.cache.entry import Choice, Entry, folder_bytes, select, this_machine, total_bytes
from latentsync_trt.runtime.cache.store import EngineCache, cache_folder

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = ("graph", "bundle", "built for", "GPU", "sizes", "size", "build", "last used", "state")

common_options = combined(
    click.option(
        "--engine-cache",
        "folder",
        type=LocalPath(),
        callback=lambda _context, _parameter, value: cache_folder(value).absolute(),
        help=next(spec for spec in fields(RuntimeOptions) if spec.name == "engine_cache").metadata["help"],
    ),
    json_option,
)


@click.group("cache")
def command() -> None:
    """Show, check and clean up the engines that were built."""


@command.command("ls")
@common_options
def list_engines(folder: Path, as_json: bool) -> None:
    """List engines: what each was built for, its size, and when it was last used."""
    _show(folder, EngineCache(folder).entries(), as_json=as_json)


@command.command("verify")
@common_options
def verify_engines(folder: Path, as_json: bool) -> None:
    """Read every engine and compare it with its SHA-256; exit code 1 if one is damaged."""
    entries = EngineCache(folder).entries(hashes=True)
    _show(folder, entries, as_json=as_json)
    if any(entry.problem for entry in entries):
        raise SystemExit(1)
    if not as_json:
        click.echo("no engine is damaged")


@command.command("prune")
@common_options
@click.option("--max-gb", type=float, help="Remove the least recently used until this is left.")
@click.option(
    "--stale",
    is_flag=True,
    help="Remove damaged engines, and those of other library versions or of GPUs that are not here.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_engines(folder: Path, as_json: bool, max_gb: float | None, stale: bool, dry_run: bool) -> None:
    """Remove engines that are too many, damaged or of no use here. Builds in progress stay."""
    if max_gb is None and not stale:
        raise click.UsageError("say what to remove: --max-gb or --stale")
    if max_gb is not None and not 0 <= max_gb < inf:
        raise click.UsageError(f"--max-gb {max_gb}: not a number from 0")
    max_bytes = None if max_gb is None else round(max_gb * 1e9)
    cache = EngineCache(folder)
    chosen = select(cache.entries(), max_bytes=max_bytes, stale=this_machine() if stale else None)
    _report(folder, chosen if dry_run else cache.remove_all(chosen), dry_run=dry_run, as_json=as_json)


@command.command("clear")
@common_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clear_engines(folder: Path, as_json: bool, yes: bool) -> None:
    """Remove all engines and kernel timings. Builds in progress stay."""
    cache = EngineCache(folder)
    chosen = [Choice(entry, "cleared") for entry in cache.entries()]
    if chosen and not yes:
        size = decimal(total_bytes(choice.entry for choice in chosen))
        click.confirm(f"Remove {_count(chosen)} ({size}) from {folder}?", abort=True, err=True)
    chosen = cache.remove_all(chosen)
    cache.remove_timings()
    _report(folder, chosen, dry_run=False, as_json=as_json)


def _report(folder: Path, chosen: Sequence[Choice], *, dry_run: bool, as_json: bool) -> None:
    """Prints what was removed and what stayed; exit code 1 if something could not be removed."""
    kept = [choice for choice in chosen if choice.refusal]
    removed = [choice for choice in chosen if not choice.refusal]
    freed_bytes = total_bytes(choice.entry for choice in removed)
    if as_json:
        lists = {"removed": list(map(asdict, removed)), "kept": list(map(asdict, kept))}
        _print_json({"folder": folder, "dry_run": dry_run, "freed_bytes": freed_bytes, **lists})
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
    from latentsync_trt.cli.show import print_table

    size_bytes = folder_bytes(folder)
    if as_json:
        rows = [{**asdict(entry), "state": entry.state} for entry in entries]
        _print_json({"folder": folder, "total_bytes": size_bytes, "engines": rows})
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


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, indent=2, default=str))
