"""Tags of an output's file: those of its source, and a mark that says that AI changed the picture.

The mark is machine-readable, as IPTC's digital source type, and in words.

| container | machine-readable | in words |
|---|---|---|
| .mp4 | XMP in a `uuid` box at the end of the file | comment, encoder |
| .mov | XMP in `moov/udta/XMP_`; with keys as in .mp4 | comment |
| .mkv | the tag DIGITAL_SOURCE_TYPE | comment, SOFTWARE |

XMP stands where part 3 of its specification wants it.

FFmpeg writes the tags of .mp4 and .mov in one of two ways: as fields that every player knows, which
have no place for what phones write ("com.apple.quicktime.make", "com.android.version"), or as keys.
Keys are for sources that have such tags; the usual ones are then written under Apple's names, too.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from latentsync_trt.media.files import open_input
from latentsync_trt.media.recipe import RECIPE_TAG, append_box
from latentsync_trt.version import __version__

_TOOL = f"latentsync-trt {__version__}"
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
"""IPTC's code for a recording of which generative AI changed a part."""
_XMP_BOX = UUID("be7acfcb-97a9-42e8-9c71-999491e3afac")
_COMMENT = f"lips changed by AI ({_TOOL})"
_OUR_COMMENTS = re.compile(r"(; )?lips changed by AI \(latentsync-trt [^)]*\)")

_XMP = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
    xmp:CreatorTool="{_TOOL}">
   <Iptc4xmpExt:DigitalSourceType>{SOURCE_TYPE}</Iptc4xmpExt:DigitalSourceType>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""

_MARK_TAGS = {
    ".mp4": {"encoding_tool": _TOOL},
    ".mov": {"xmp": _XMP},
    ".mkv": {"DIGITAL_SOURCE_TYPE": SOURCE_TYPE, "SOFTWARE": _TOOL},
}
"""Tags of the mark besides the comment, by FFmpeg's names.

FFmpeg writes XMP into .mov only, and any other key as a tag of .mkv.
"""
_MARK_NAMES = {name.lower() for tags in _MARK_TAGS.values() for name in tags}

_TAGS_OF_THE_FILE = (
    "major_brand",
    "minor_version",
    "compatible_brands",
    "encoder",
    "duration",
    "timecode",
    RECIPE_TAG.lower(),
)
"""Tags that describe the source's file itself, and a time code, which FFmpeg refuses for unusual
rates.
"""

_TAGS_WITH_APPLE_KEYS = (
    "title",
    "artist",
    "album",
    "comment",
    "copyright",
    "description",
    "genre",
    "keywords",
    "make",
    "model",
)
_APPLE_KEYS = {name: f"com.apple.quicktime.{name}" for name in _TAGS_WITH_APPLE_KEYS}
_APPLE_KEYS["location"] = "com.apple.quicktime.location.ISO6709"
"""Apple's names of tags that are keys, by FFmpeg's names."""
_COMMENTS = ("comment", _APPLE_KEYS["comment"])


def file_tags(source: Path | None, suffix: str, *, mark: bool) -> dict[str, str]:
    """Returns the tags of an output's file: those of the source, the mark, and for keys Apple's
    names.
    """
    tags = {} if source is None else _source_tags(source)
    if mark:
        tags = with_mark(tags, suffix)
    if suffix == ".mkv" or not has_keys(tags):
        return tags
    tags.pop("xmp", None)  # FFmpeg would write it as a key
    apple = {key: tags[name] for name, key in _APPLE_KEYS.items() if name in tags}
    return {**apple, **tags}


def has_keys(tags: Mapping[str, str]) -> bool:
    """Returns whether an .mp4 or .mov with these tags needs keys instead of fields."""
    return any("." in name for name in tags)


def _source_tags(source: Path) -> dict[str, str]:
    tags = dict[str, str]()
    with open_input(source) as container:
        for name, value in container.metadata.items():
            if name.lower() in _TAGS_OF_THE_FILE:
                continue
            if "." in name and name.isupper():  # Matroska has capital letters only
                name = name.lower().replace("iso6709", "ISO6709")
            tags[name] = value
    return tags


def with_mark(tags: Mapping[str, str], suffix: str) -> dict[str, str]:
    """Returns the tags of an .mp4, .mov or .mkv with the mark, instead of an earlier one."""
    marked = {name: value for name, value in tags.items() if not is_mark(name)}
    comments = [name for name in marked if name.lower() in _COMMENTS]
    for name in comments or ["comment"]:
        words = _OUR_COMMENTS.sub("", marked.get(name, ""))
        marked[name] = _COMMENT
        if words:
            marked[name] = f"{words}; {_COMMENT}"
    return {**marked, **_MARK_TAGS[suffix]}


def is_mark(name: str) -> bool:
    """Returns whether a tag of this name belongs to the mark."""
    return name.lower() in _MARK_NAMES


def append_xmp(path: Path) -> None:
    """Adds the XMP to an .mp4 or .mov."""
    append_box(path, _XMP_BOX, _XMP.encode())
