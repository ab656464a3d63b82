"""What the linked FFmpeg can do; for `doctor`."""

import av
from av.codec import Codec
from av.codec.codec import UnknownCodecError

NEEDED_ENCODERS = ("libx264", "ffv1", "aac")
NEEDED_DECODERS = ("h264", "hevc", "vp9", "av1", "prores", "aac", "mp3", "opus", "flac", "pcm_s16le")


def library_versions() -> dict[str, str]:
    """PyAV's version and those of the FFmpeg libraries it is linked with."""
    libraries = {name: ".".join(map(str, version)) for name, version in sorted(av.library_versions.items())}
    return {"PyAV": av.__version__, **libraries}


def missing_codecs() -> tuple[str, ...]:
    """Encoders and decoders this tool uses that the linked FFmpeg lacks; empty if all are there."""
    encoders = [f"encoder {name}" for name in NEEDED_ENCODERS if not _exists(name, "w")]
    decoders = [f"decoder {name}" for name in NEEDED_DECODERS if not _exists(name, "r")]
    return (*encoders, *decoders)


def _exists(name: str, mode: str) -> bool:
    try:
        Codec(name, "w" if mode == "w" else "r")
    except UnknownCodecError:
        return False
    return True
