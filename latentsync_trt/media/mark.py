"""Marks a video as changed by AI: machine-readable as IPTC's digital source type, and in words.

| container | machine-readable | in words |
|---|---|---|
| .mp4 | XMP in a `uuid` box at the end of the file | comment, encoder |
| .mov | XMP in `moov/udta/XMP_` | comment |
| .mkv | the tag DIGITAL_SOURCE_TYPE | comment, SOFTWARE |

XMP stands where part 3 of its specification wants it.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from latentsync_trt.media.files import writing
from latentsync_trt.version import __version__

TOOL = f"latentsync-trt {__version__}"
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
"""IPTC's code for a recording of which generative AI changed a part."""

XMP_BOX = UUID("be7acfcb-97a9-42e8-9c71-999491e3afac")

_COMMENT = f"lips changed by AI ({TOOL})"
_OUR_COMMENTS = re.compile(r"(; )?lips changed by AI \(latentsync-trt [^)]*\)")

_XMP = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
    xmp:CreatorTool="{TOOL}">
   <Iptc4xmpExt:DigitalSourceType>{SOURCE_TYPE}</Iptc4xmpExt:DigitalSourceType>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""

# FFmpeg's names. It writes XMP into .mov only, and any other key as a tag of .mkv.
_KEYS = {
    ".mp4": {"encoding_tool": TOOL},
    ".mov": {"xmp": _XMP},
    ".mkv": {"DIGITAL_SOURCE_TYPE": SOURCE_TYPE, "SOFTWARE": TOOL},
}


def marked(metadata: Mapping[str, str], suffix: str) -> dict[str, str]:
    """The metadata of a container with the mark, instead of an earlier one, to set before its header is written.

    Args:
        suffix: of the container: .mp4, .mov or .mkv.
    """
    names = {name.lower() for keys in _KEYS.values() for name in keys}
    kept = {name: value for name, value in metadata.items() if name.lower() not in names}
    name = next((name for name in kept if name.lower() == "comment"), "comment")
    own_words = _OUR_COMMENTS.sub("", kept.get(name, ""))
    return {**kept, **_KEYS[suffix], name: f"{own_words}; {_COMMENT}" if own_words else _COMMENT}


def mark(path: Path) -> None:
    """Adds what only a finished file can take: the XMP of an .mp4, behind all else, so that nothing in it moves.

    Raises:
        OutputError: the file cannot be written.
    """
    if path.suffix.lower() != ".mp4":
        return
    content = XMP_BOX.bytes + _XMP.encode()
    with writing(path), path.open("ab") as file:
        file.write(struct.pack(">I4s", 8 + len(content), b"uuid") + content)
