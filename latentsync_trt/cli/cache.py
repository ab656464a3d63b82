"""`latentsync-trt cache`: what engines were built, whether they are whole, and removing them."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.cache.engine_cache import cache_folder
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.machine import Machine, this_machine
from latentsync_trt.runtime.cache.prune import Choice, Item, Limits, Outcome, clear, prune, survey, total_bytes

F = TypeVar("F", bound=Callable[..., Any])

_BYTES_PER_GB = 10**9
_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))

# Where the table goes to a file or a pipe, there is no screen that it must fit. Below the second width its columns are
# set in pairs, one above the other.
_WIDE = 240
_NARROW = 150

_FOLDING = ("graph", "bundle", "provider", "GPU", "precision", "profile")
_COLUMNS = (
    "graph",
    "bundle",
    "provider",
    "GPU",
    "precision",
    "profile",
    "size",
    "build",
    "built",
    "last used",
    "state",
)


def common_options(function: F) -> F:
    """`--engine-cache` and `--json`."""
    given = next(spec for spec in dataclasses.fields(RuntimeOptions) if spec.name == "engine_cache")
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")(function)
    return click.option(
        "--engine-cache",
        "place",
        type=click.Path(path_type=Path),
        callback=lambda _context, _parameter, value: cache_folder(value).absolute(),
        help=given.metadata["help"],
    )(function)


@click.group("cache")
def command() -> None:
    """Show, check and clean up the engines that were built."""


@command.command("ls")
@common_options
def list_items(place: Path, as_json: bool) -> None:
    """List what the cache holds: what it is for, its size, and when it was last used."""
    _show(place, survey(place), as_json=as_json)


@command.command("verify")
@common_options
def verify_items(place: Path, as_json: bool) -> None:
    """Read every engine and compare it with its SHA-256; exit code 1 if one is damaged."""
    items = survey(place, hashes=True)
    _show(place, items, as_json=as_json)
    damaged = sum(item.state in ("damaged", "unreadable") for item in items)
    if damaged:
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo("every engine is as it was built")


@command.command("prune")
@common_options
@click.option("--max-gb", type=click.FloatRange(0, 1e6), help="Remove what was used least recently until this is left.")
@click.option("--unused-days", type=click.IntRange(0, 36500), help="Remove what was not used for so many days.")
@click.option(
    "--stale",
    is_flag=True,
    help="Remove damaged and replaced engines, leftovers of killed builds, and engines of other library versions or "
    "of GPUs that are not here.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_items(
    place: Path, as_json: bool, max_gb: float | None, unused_days: int | None, stale: bool, dry_run: bool
) -> None:
    """Remove engines that are old, damaged or too many. What is being built stays."""
    if max_gb is None and unused_days is None and not stale:
        raise click.UsageError("say what to remove: --max-gb, --unused-days or --stale")
    limits = Limits(
        max_bytes=None if max_gb is None else round(max_gb * _BYTES_PER_GB),
        unused_for=None if unused_days is None else timedelta(days=unused_days),
        stale=stale,
        machine=this_machine() if stale else Machine(),
    )
    _report(place, prune(place, limits, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


@command.command("clear")
@common_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def clear_items(place: Path, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Remove all engines and kernel timings. What is being built stays."""
    if not (yes or dry_run):
        _ask(place)
    _report(place, clear(place, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


def _ask(place: Path) -> None:
    """Asks on a terminal whether all may go; anywhere else nobody could answer, and that is wrong usage."""
    if not is_terminal():
        raise click.UsageError("nobody is there to be asked; --yes removes everything without asking")
    items = survey(place)
    if items:
        click.confirm(f"Remove {_count(items)} ({size_text(total_bytes(items))}) from {place}?", abort=True, err=True)


def is_terminal() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def _report(place: Path, outcome: Outcome, *, dry_run: bool, as_json: bool) -> None:
    """Says what went and what stayed; exit code 1 if something stayed that should have gone."""
    if as_json:
        parts = {"removed": outcome.removed, "kept": outcome.kept}
        lists = {name: [_choice_json(choice) for choice in choices] for name, choices in parts.items()}
        content = {"place": str(place), "dry_run": dry_run, "freed_bytes": outcome.freed_bytes, **lists}
        click.echo(json.dumps(content, indent=2))
    else:
        for choice in outcome.removed:
            click.echo(f"{choice.item.label} ({size_text(choice.item.size_bytes)}): {choice.reason}")
        freed = f"{_count(choice.item for choice in outcome.removed)}, {size_text(outcome.freed_bytes)}"
        click.echo(f"{'would remove' if dry_run else 'removed'} {freed} from {place}")
        for choice in outcome.kept:
            click.echo(f"error: {choice.item.label} stays: {choice.reason}", err=True)
    if outcome.kept:
        raise click.exceptions.Exit(1)


def _show(place: Path, items: tuple[Item, ...], *, as_json: bool) -> None:
    if as_json:
        content = {
            "place": str(place),
            "total_bytes": total_bytes(items),
            "items": [_item_json(item) for item in items],
        }
        click.echo(json.dumps(content, indent=2))
        return
    if items:
        _print_table(items)
    for item in items:
        if item.problem:
            click.echo(f"{item.folder.name}: {item.problem}")
    click.echo(f"{_count(items)}, {size_text(total_bytes(items))} in {place}")


def _print_table(items: tuple[Item, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    arrange = _stacked if width < _NARROW else tuple
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), leading=int(arrange is _stacked))
    for name in arrange(_COLUMNS):
        folds = name.startswith(_FOLDING)
        table.add_column(name, justify="right" if "size" in name else "left", overflow="fold", no_wrap=not folds)
    for item in items:
        table.add_row(*arrange(_row(item)))
    # Names come from files of others: no markup in them.
    Console(markup=False, highlight=False, emoji=False, width=width).print(table)


def _stacked(cells: Iterable[str]) -> tuple[str, ...]:
    """Two cells above each other, but for the last, which has no partner."""
    *paired, last = cells
    return (*(f"{upper}\n{lower}" for upper, lower in zip(paired[::2], paired[1::2], strict=True)), last)


def _row(item: Item) -> tuple[str, ...]:
    size, used = size_text(item.size_bytes), _day(item.last_used_at)
    if item.record is None:
        name = "kernel timings" if item.kind == "timings" else item.folder.name
        return name, *[""] * 5, size, "", "", used, item.state
    key = item.record.key
    return (
        key.graph + key.form_note,
        key.bundle,
        key.provider,
        f"{key.gpu} ({key.compute_capability})" if key.compute_capability else key.gpu,
        key.precision,
        _profile_text(key),
        size,
        f"{item.record.build_s:.1f} s",
        _day(item.record.built_at),
        used,
        item.state,
    )


def _profile_text(key: EngineKey) -> str:
    spans = ((name, low, high) for name, (low, _usual, high) in key.profile.items())
    return ", ".join(f"{name} {low}" if low == high else f"{name} {low}-{high}" for name, low, high in spans) or "fixed"


def size_text(size_bytes: int) -> str:
    """A size for people: "2.57 GB"."""
    for unit, one_bytes in _UNITS:
        if size_bytes >= one_bytes:
            return f"{size_bytes / one_bytes:.3g} {unit}"
    return f"{size_bytes} bytes"


def _day(moment: datetime) -> str:
    return moment.astimezone().date().isoformat()


def _count(items: Iterable[Item]) -> str:
    kinds = [item.kind for item in items]
    engines, others = kinds.count("engine"), len(kinds) - kinds.count("engine")
    return f"{engines} engine{'' if engines == 1 else 's'}" + (f" and {others} other" if others else "")


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {**_item_json(choice.item), "reason": choice.reason}


def _item_json(item: Item) -> dict[str, Any]:
    content: dict[str, Any] = {
        "kind": item.kind,
        "folder": str(item.folder),
        "state": item.state,
        "problem": item.problem,
        "size_bytes": item.size_bytes,
        "last_used_at": item.last_used_at.isoformat(),
    }
    if item.record:
        built = {"built_at": item.record.built_at.isoformat(), "build_s": item.record.build_s}
        return {**content, **built, **item.record.key.to_json(), "form": item.record.key.form}
    return content
