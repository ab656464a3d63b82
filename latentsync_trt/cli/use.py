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
    """After the bundle `made` was written: which one commands run without `--bundle`; empty if it is that one."""
    if made.resolve().parent != checkpoints_folder().resolve():
        return f"`--bundle {made}` runs it: commands without --bundle look in {checkpoints_folder()} only"
    default = default_bundle().name
    if default == made.name:
        return ""
    runs = f"without --bundle, {default or 'none'} runs"
    return f"{runs}; `--bundle {made.name}` runs this one, `latentsync-trt use {made.name}` makes it the default"
