"""`latentsync-trt cache`: list, check and remove engines."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.cache.entry import Entry, folder_bytes
from latentsync_trt.runtime.cache.prune import Choice, Limits, Outcome, clear, prune, survey, this_machine, total_bytes
from latentsync_trt.runtime.cache.store import cache_folder

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = ("graph", "bundle", "built for", "GPU", "sizes", "size", "build", "last used", "state")


def common_options(function: F) -> F:
    """`--engine-cache` and `--json`."""
    given = next(spec for spec in dataclasses.fields(RuntimeOptions) if spec.name == "engine_cache")
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")(function)
    return click.option(
        "--engine-cache",
        "folder",
        type=click.Path(path_type=Path),
        callback=lambda _context, _parameter, value: cache_folder(value).absolute(),
        help=given.metadata["help"],
    )(function)


@click.group("cache")
def command() -> None:
    """Show, check and clean up the engines that were built."""


@command.command("ls")
@common_options
def list_engines(folder: Path, as_json: bool) -> None:
    """List engines: what each was built for, its size, and when it was last used."""
    _show(folder, survey(folder), as_json=as_json)


@command.command("verify")
@common_options
def verify_engines(folder: Path, as_json: bool) -> None:
    """Read every engine and compare it with its SHA-256; exit code 1 if one is damaged."""
    entries = survey(folder, hashes=True)
    _show(folder, entries, as_json=as_json)
    if any(entry.state in ("damaged", "unreadable") for entry in entries):
        raise SystemExit(1)
    if not as_json:
        click.echo("no engine is damaged")


@command.command("prune")
@common_options
@click.option("--max-gb", type=click.FloatRange(0, 1e6), help="Remove the least recently used until this is left.")
@click.option("--unused-days", type=click.IntRange(0, 36500), help="Remove what was not used for this many days.")
@click.option(
    "--stale",
    is_flag=True,
    help="Remove damaged engines, and those of other library versions or of GPUs that are not here.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_engines(
    folder: Path, as_json: bool, max_gb: float | None, unused_days: int | None, stale: bool, dry_run: bool
) -> None:
    """Remove engines that are old, damaged or too many. Builds in progress stay."""
    if max_gb is None and unused_days is None and not stale:
        raise click.UsageError("say what to remove: --max-gb, --unused-days or --stale")
    limits = Limits(
        max_bytes=None if max_gb is None else round(max_gb * 1e9),
        unused_for=None if unused_days is None else timedelta(days=unused_days),
        stale=this_machine() if stale else None,
    )
    _report(folder, prune(folder, limits, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


@command.command("clear")
@common_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def clear_engines(folder: Path, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Remove all engines and kernel timings. Builds in progress stay."""
    if not (yes or dry_run):
        if not is_terminal():
            raise click.UsageError("there is no terminal to ask on; --yes removes everything without asking")
        entries = survey(folder)
        if entries:
            size = decimal(total_bytes(entries))
            click.confirm(f"Remove {_count(entries)} ({size}) from {folder}?", abort=True, err=True)
    _report(folder, clear(folder, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


def is_terminal() -> bool:
    """Whether a question can be answered."""
    return sys.stdin is not None and sys.stdin.isatty()


def _report(folder: Path, outcome: Outcome, *, dry_run: bool, as_json: bool) -> None:
    """Prints what was removed and what stayed; exit code 1 if something stayed that was to be removed."""
    removed = [entry for entry, _ in outcome.removed]
    if as_json:
        lists = {"removed": _choices_json(outcome.removed), "kept": _choices_json(outcome.kept)}
        content = {"folder": str(folder), "dry_run": dry_run, "freed_bytes": total_bytes(removed), **lists}
        _print_json(content)
    else:
        for entry, reason in outcome.removed:
            click.echo(f"{entry.label} ({decimal(entry.size_bytes)}): {reason}")
        freed = f"{_count(removed)} ({decimal(total_bytes(removed))})"
        click.echo(f"{'would remove' if dry_run else 'removed'} {freed} from {folder}")
        for entry, reason in outcome.kept:
            click.echo(f"error: {entry.label} stays: {reason}", err=True)
    if outcome.kept:
        raise SystemExit(1)


def _show(folder: Path, entries: tuple[Entry, ...], *, as_json: bool) -> None:
    size_bytes = folder_bytes(folder)
    if as_json:
        content = {
            "folder": str(folder),
            "total_bytes": size_bytes,
            "engines": [dataclasses.asdict(entry) for entry in entries],
        }
        _print_json(content)
        return
    if entries:
        table = Table(*_COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
        for entry in entries:
            table.add_row(*_row(entry))
        # Names come from files of others: no markup in them.
        Console(markup=False, highlight=False, emoji=False).print(table)
    for entry in entries:
        if entry.problem:
            click.echo(f"{entry.folder.name}: {entry.problem}")
    click.echo(f"{_count(entries)} in {folder}, {decimal(size_bytes)} with kernel timings")


def _row(entry: Entry) -> tuple[str, ...]:
    size, used_on = decimal(entry.size_bytes), entry.last_used_at.astimezone().date().isoformat()
    if entry.record is None:
        return entry.folder.name, "", "", "", "", size, "", used_on, entry.state
    key = entry.record.key
    sizes = [f"{name} {low}" + (f"-{high}" if high > low else "") for name, (low, _, high) in key.profile.items()]
    return (
        key.graph,
        key.bundle,
        f"{key.provider} {key.precision}",
        f"{key.gpu} ({key.compute_capability})",
        ", ".join(sizes) or "fixed",
        size,
        f"{entry.record.build_s:.1f} s",
        used_on,
        entry.state,
    )


def _count(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} engine{'' if len(entries) == 1 else 's'}"


def _choices_json(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(entry), "reason": reason} for entry, reason in choices]


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, indent=2, default=str))
