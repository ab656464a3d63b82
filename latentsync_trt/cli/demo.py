"""`latentsync-trt demo`: the whole way once, on a built-in clip, with nothing to download."""

from fractions import Fraction
from pathlib import Path

import click


@click.command("demo")
@click.option("--out", default="demo", show_default=True, type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--audio", type=click.Path(path_type=Path), help="Speech of your own.  [default: a built-in sentence]")
@click.option("--bundle", default="demo", show_default=True, help="The model to run: a path, a name, or demo.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(out: Path, audio: Path | None, bundle: str, quiet: bool) -> None:
    """Lip-sync a built-in clip on the CPU: writes source.mp4 and out.mp4 to the folder."""
    from latentsync_trt.bundle import find_bundle
    from latentsync_trt.cli.show import progress_bar, show_report
    from latentsync_trt.demo import SENTENCE, SPEECH
    from latentsync_trt.errors import OutputError
    from latentsync_trt.media.audio import probe_audio
    from latentsync_trt.pipeline import LipSync

    folder, _ = find_bundle(bundle)
    speech = audio or SPEECH
    duration_s = probe_audio(speech).duration_s
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be created ({error.strerror})") from error
    source = out / "source.mp4"
    write_source(source, duration_s)
    if not quiet:
        click.echo(f"{source}: a portrait of {float(duration_s):.1f} s")
        click.echo("speech: " + (f"“{SENTENCE}”" if audio is None else str(audio)))
    with progress_bar(hidden=quiet) as on_progress:
        report = LipSync.from_bundle(folder, "cpu").sync(source, speech, out / "out.mp4", on_progress=on_progress)
    show_report(report, quiet=quiet, as_json=False)


def write_source(path: Path, duration_s: Fraction) -> None:
    """Films the portrait for `duration_s` and writes it as H.264, near lossless."""
    from latentsync_trt.config import MODEL_FPS
    from latentsync_trt.demo import SIDE_PX, camera_frames
    from latentsync_trt.media.patch import planes_of
    from latentsync_trt.media.writer import VideoWriter
    from latentsync_trt.types import ColourTags, Frame, VideoInfo

    colour = ColourTags(1, 1, 1, full_range=False)
    info = VideoInfo(SIDE_PX, SIDE_PX, Fraction(MODEL_FPS), duration_s, "h264", "yuv420p", 0, colour)
    with VideoWriter(path, info, crf=10) as writer:
        for index, rgb in enumerate(camera_frames(duration_s)):
            writer.write(Frame(index, Fraction(index, MODEL_FPS), rgb, planes_of(rgb, colour)))
