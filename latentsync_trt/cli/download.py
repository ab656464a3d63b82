"""`latentsync-trt download`: gets the published weights that `export` reads."""

import rich_click as click

from latentsync_trt import stopping
from latentsync_trt.bundle.find import checkpoints_folder
from latentsync_trt.bundle.manifest import tool_versions
from latentsync_trt.export.export_options import EXTRA
from latentsync_trt.export.published import LATENTSYNC, VAE, check_space, fetch, find_downloads

HUB = "huggingface-hub"
INTERRUPTED = "interrupted; what was finished is kept: the same command goes on there"


@click.command("download")
@click.argument("model", type=click.Choice(tuple(LATENTSYNC)), default="1.6")
def command(model: str) -> None:
    """Download the published weights of LatentSync 1.6 or 1.5, with Whisper and the VAE that they need.

    Interrupted, the same command goes on; what is there already needs no network. $HF_ENDPOINT names a mirror.
    """
    tool_versions((HUB,), extra=EXTRA)
    from latentsync_trt.cli.show import say

    downloads = find_downloads(model)
    if downloads:
        check_space(checkpoints_folder(), downloads)
    with stopping.interruption(INTERRUPTED):
        for each in downloads:
            say(str(each))
            fetch(each, say)
    for repository in (LATENTSYNC[model], VAE):
        click.echo(f"{repository.folder}: {repository}")
