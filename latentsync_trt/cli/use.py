"""`latentsync-trt use`: chooses the bundle that commands run without `--bundle`."""

from pathlib import Path

import rich_click as click

from latentsync_trt.bundle.find import (
    checkpoints_folder,
    default_bundle,
    describe,
    exported_bundles,
    facts,
    remember,
)
from latentsync_trt.bundle.manifest import read_manifest


@click.command("use")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Choose the exported bundle that commands run without `--bundle`; without NAME, show the choice.

    The choice is kept in the folder of bundles, checkpoints/, and holds for all commands started beside it.
    """
    if name is not None:
        folder = remember(name)
        click.echo(f"{folder}: runs where no --bundle is given ({facts(read_manifest(folder))})")
        return
    default, exported = default_bundle(), exported_bundles()
    for folder in exported:
        click.echo(f"{'*' if folder.name == default.name else ' '} {describe(folder)}")
    if default.name is None:
        click.echo(default.reason)
    else:
        click.echo(f"{checkpoints_folder()}: {default.name} runs where no --bundle is given; it is {default.reason}")


def note_on_default(made: Path) -> str:
    """After the bundle `made` was written: which one commands run without `--bundle`; empty if it is the only one."""
    default, exported = default_bundle(), exported_bundles()
    if made.resolve() not in [folder.resolve() for folder in exported]:
        return f"`--bundle {made}` runs it: commands without --bundle look in {checkpoints_folder()} only"
    if default.name == made.name:
        return "" if len(exported) == 1 else f"without --bundle, {made.name} runs: it is {default.reason}"
    cure = f"`--bundle {made.name}` runs this one, `latentsync-trt use {made.name}` makes it the default"
    if default.name is None:
        return f"{len(exported)} bundles are exported, and without --bundle none runs: {cure}"
    return f"without --bundle, {default.name} runs: it is {default.reason}; {cure}"
