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
from latentsync_trt.runtime.cache.prune import (
    Choice,
    Item,
    Limits,
    Outcome,
    clear,
    folder_bytes,
    prune,
    survey,
    this_machine,
    total_bytes,
)
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
def list_items(folder: Path, as_json: bool) -> None:
    """List engines: what each was built for, its size, and when it was last used."""
    _show(folder, survey(folder), as_json=as_json)


@command.command("verify")
@common_options
def verify_items(folder: Path, as_json: bool) -> None:
    """Read every engine and compare it with its SHA-256; exit code 1 if one is damaged."""
    items = survey(folder, hashes=True)
    _show(folder, items, as_json=as_json)
    if any(item.state in ("damaged", "unreadable") for item in items):
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
def prune_items(
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
def clear_items(folder: Path, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Remove all engines and kernel timings. Builds in progress stay."""
    if not (yes or dry_run):
        if not is_terminal():
            raise click.UsageError("there is no terminal to ask on; --yes removes everything without asking")
        items = survey(folder)
        if items:
            size = decimal(total_bytes(items))
            click.confirm(f"Remove {_count(items)} ({size}) from {folder}?", abort=True, err=True)
    _report(folder, clear(folder, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


def is_terminal() -> bool:
    """Whether a question can be answered."""
    return sys.stdin is not None and sys.stdin.isatty()


def _report(folder: Path, outcome: Outcome, *, dry_run: bool, as_json: bool) -> None:
    """Prints what was removed and what stayed; exit code 1 if something stayed that was to be removed."""
    removed = [item for item, _ in outcome.removed]
    if as_json:
        lists = {"removed": _choices_json(outcome.removed), "kept": _choices_json(outcome.kept)}
        content = {"folder": str(folder), "dry_run": dry_run, "freed_bytes": total_bytes(removed), **lists}
        click.echo(json.dumps(content, indent=2))
    else:
        for item, reason in outcome.removed:
            click.echo(f"{item.label} ({decimal(item.size_bytes)}): {reason}")
        freed = f"{_count(removed)} ({decimal(total_bytes(removed))})"
        click.echo(f"{'would remove' if dry_run else 'removed'} {freed} from {folder}")
        for item, reason in outcome.kept:
            click.echo(f"error: {item.label} stays: {reason}", err=True)
    if outcome.kept:
        raise SystemExit(1)


def _show(folder: Path, items: tuple[Item, ...], *, as_json: bool) -> None:
    size_bytes = folder_bytes(folder)
    if as_json:
        content = {"folder": str(folder), "total_bytes": size_bytes, "items": [_item_json(item) for item in items]}
        click.echo(json.dumps(content, indent=2))
        return
    if items:
        table = Table(*_COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
        for item in items:
            table.add_row(*_row(item))
        # Names come from files of others: no markup in them.
        Console(markup=False, highlight=False, emoji=False).print(table)
    for item in items:
        if item.problem:
            click.echo(f"{item.folder.name}: {item.problem}")
    click.echo(f"{_count(items)} in {folder}, {decimal(size_bytes)} with kernel timings")


def _row(item: Item) -> tuple[str, ...]:
    size, used_on = decimal(item.size_bytes), item.last_used_at.astimezone().date().isoformat()
    if item.record is None:
        return item.folder.name, "", "", "", "", size, "", used_on, item.state
    key = item.record.key
    sizes = [f"{name} {low}" + (f"-{high}" if high > low else "") for name, (low, _, high) in key.profile.items()]
    return (
        key.graph,
        key.bundle,
        f"{key.provider} {key.precision}",
        f"{key.gpu} ({key.compute_capability})",
        ", ".join(sizes) or "fixed",
        size,
        f"{item.record.build_s:.1f} s",
        used_on,
        item.state,
    )


def _count(items: Sequence[Item]) -> str:
    return f"{len(items)} engine{'' if len(items) == 1 else 's'}"


def _choices_json(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    return [{**_item_json(item), "reason": reason} for item, reason in choices]


def _item_json(item: Item) -> dict[str, Any]:
    content: dict[str, Any] = {
        "folder": str(item.folder),
        "state": item.state,
        "problem": item.problem,
        "size_bytes": item.size_bytes,
        "last_used_at": item.last_used_at.isoformat(),
    }
    if item.record is None:
        return content
    built = {"built_at": item.record.built_at.isoformat(), "build_s": item.record.build_s}
    return {**content, **built, **dataclasses.asdict(item.record.key)}
