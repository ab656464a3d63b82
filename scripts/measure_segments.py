"""What a cut costs the audio encoder, by the length of the pieces and the sound they share, and what it costs the lips.

    python -m scripts.measure_segments [--whisper model.bin] [--json FILE] [--picture FILE]     # needs the dev extra

Held-out sentences are cut at times when someone speaks. Features are compared with those of a
piece of 30 s around them: `seam`, within 0.3 s of the cut, and `inside`, a quarter of a piece before it; root mean
square of the last layer, in standard deviations of each feature. --whisper: an encoder in CTranslate2's format, such as
tiny.en. With the built-in model the face is painted 0.64 s before and after each cut: mean error of the
gap between the lips, in distances between the eyes; correlation with the mouth of the sentence; m, b, p shown shut. The
picture shows the cut at which the hard cut of 30 s is most wrong.
"""

import argparse
import json
import platform
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import onnxruntime
import torch

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.audio.encoder import FEATURES_PER_S, SEGMENT_FEATURES, SEGMENT_FRAMES, attended_positions
from latentsync_trt.audio.mel import filters_of, log_power_blocks, scaled
from latentsync_trt.bundle.find import demo_folder
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.export.networks import WhisperConfig, WhisperEncoder
from latentsync_trt.face.align import crop, inverse, rescaled
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.measure.lips import CLOSED_GAP, agreement, gap_of, runs_of_true
from latentsync_trt.measure.page import SHOWN_PX, face_grid, write_png
from latentsync_trt.media.demo_clip import SpokenMouth, camera_frames
from latentsync_trt.runtime.model import Model, open_model
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.held_out import held_out_cases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Encode = Callable[[Float32Array], Float32Array]

PLANS_S = ((30, 0), (30, 1), (30, 5), (10, 0), (10, 2.5))
"""Length of a piece, and how much of it lies beyond the cut; 0 = cut hard, as in the public release."""
AROUND = "around the cut"
OPTIONS = SyncOptions(preset="draft")
NEAR, FRAMES = round(0.3 * FEATURES_PER_S), 16
_CTRANSLATE2 = {
    "attn_ln": "self_attention/layer_norm",
    "attn.qkv": "self_attention/linear_0",
    "attn.out": "self_attention/linear_1",
    "mlp_ln": "ffn/layer_norm",
    "mlp.0": "ffn/linear_0",
    "mlp.2": "ffn/linear_1",
}
_POSITIONS = "encoder/position_encodings/encodings"
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """A spectrogram `(80, n)` as the encoder sees it, and the mouth that belongs to it."""

    mel: Float32Array
    mouth: SpokenMouth

    def features(self, encode: Encode, start: int, end: int) -> Float32Array:
        """Those of the piece from `start` to `end`, `(n, L, D)`."""
        mel = self.mel[:, 2 * start : 2 * end]
        return encode(np.pad(mel, ((0, 0), (0, SEGMENT_FRAMES - mel.shape[1])))[None])[0][: end - start]


def ctranslate2_encoder(path: Path) -> WhisperEncoder:
    """The encoder in a model file of CTranslate2, in float32."""
    found: dict[str, Any] = {}
    with path.open("rb") as file:

        def number(code: str) -> Any:
            return struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]

        def text() -> str:
            return file.read(number("H"))[:-1].decode()

        number("I"), text(), number("I")
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            kind = _TYPES[number("B")]
            found[name] = np.frombuffer(file.read(number("I")), kind).reshape(shape)
    (width, mels, _), positions = found["encoder/conv1/weight"].shape, len(found[_POSITIONS])
    blocks = sum(name.startswith("encoder/") and name.endswith("ffn/linear_0/weight") for name in found)
    network = WhisperEncoder(WhisperConfig(mels, positions, width, int(found["encoder/num_heads"]), blocks))
    for name, parameter in network.named_parameters():
        place, _, kind = name.rpartition(".")
        if place.startswith("blocks."):
            _, block, part = place.split(".", 2)
            kind = {"weight": "gamma", "bias": "beta"}[kind] if part.endswith("ln") else kind
            value = found[f"encoder/layer_{block}/{_CTRANSLATE2[part]}/{kind}"]
            value = value.T if kind == "weight" else value
        else:
            value = found[f"encoder/{place}/{kind}" if place else _POSITIONS]
        parameter.data = torch.from_numpy(value.astype(np.float32))
    return network.eval()


def distance(found: Float32Array, right: Float32Array, spread: Float32Array) -> float:
    """Of the last layers, in standard deviations."""
    return float(np.sqrt(np.mean(np.square((found[:, -1] - right[:, -1]) / spread))))


def features_rows(speech: Speech, encode: Encode, cuts: list[int]) -> list[dict[str, Any]]:
    """A row for each plan."""
    half = SEGMENT_FEATURES // 2
    around = {at: speech.features(encode, at - half, at + half) for at in cuts}
    spread = np.concatenate([each[:, -1] for each in around.values()]).std(axis=0)
    found: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for at in cuts:
        for length_s, beyond_s in PLANS_S:
            length, beyond = round(length_s * FEATURES_PER_S), round(beyond_s * FEATURES_PER_S)
            before, after = pieces(speech, encode, at, length, beyond)
            start, middle = at - length + beyond, at - length // 4
            right = speech.features(encode, middle - half, middle + half)
            seam = np.concatenate([before[at - start - NEAR : at - start], after[beyond : beyond + NEAR]])
            inside = before[middle - start - NEAR : middle - start + NEAR]
            pair = [(seam, around[at]), (inside, right)]
            distances = [distance(each, whole[half - NEAR : half + NEAR], spread) for each, whole in pair]
            found.setdefault((length_s, beyond_s), []).append((distances[0], distances[1]))
    return [
        {"piece_s": length_s, "shared_s": 2 * beyond_s}
        | dict(zip(("seam", "inside"), np.mean(values, axis=0).round(3).tolist(), strict=True))
        for (length_s, beyond_s), values in found.items()
    ]


def pieces(speech: Speech, encode: Encode, at: int, length: int, beyond: int) -> tuple[Float32Array, Float32Array]:
    """Features of the pieces before and after a cut."""
    before, after = (at - length + beyond, at + beyond), (at - beyond, at + length - beyond)
    return speech.features(encode, *before), speech.features(encode, *after)


class Lips:
    """The built-in model paints one face."""

    def __init__(self, model: Model) -> None:
        self._inpainter = make_inpainter(model, OPTIONS)
        self._detector, self._frame = MediaPipeDetector(), next(camera_frames(1))  # type: ignore[arg-type]
        side_px = model.bundle.manifest.resolution_px
        tracked = MainFace(self._detector, side_px).update(self._frame)
        if tracked is None:
            raise ValueError("no face in the portrait")
        self._face, self._aligned = tracked.face, crop(self._frame, tracked.matrix, side_px)

    def painted(self, features: Float32Array, at: int) -> list[UInt8Array]:
        """The faces of 32 frames, the 17th of which begins at feature `at` of these, `(side, side, 3)` RGB each."""
        centers = at + FEATURES_PER_S // MODEL_FPS * np.arange(-FRAMES, FRAMES)
        attended = features[attended_positions(centers, len(features))]
        audio = attended.reshape(2, FRAMES, -1, features.shape[-1])
        windows = self._inpainter.paint([(np.stack([self._aligned.image] * FRAMES), each) for each in audio])
        return [np.rint(face / np.float32(257)).astype(np.uint8) for window in windows for face in window]

    def gap(self, face: UInt8Array) -> float:
        """Between the lips of the portrait with a painted face."""
        frame = self._frame.copy()
        matrix = inverse(rescaled(self._aligned, face.shape[:2]))
        cv2.warpAffine(face, matrix, frame.shape[1::-1], dst=frame, borderMode=cv2.BORDER_TRANSPARENT)
        mesh = self._detector.mesh(frame, self._face)
        return float("nan") if mesh is None else gap_of(mesh)


def painted(speech: Speech, encode: Encode, cuts: list[int], lips: Lips) -> dict[str, list[list[UInt8Array]]]:
    """The faces around each cut, as with a piece around it, and with each plan."""
    half, found = SEGMENT_FEATURES // 2, dict[str, list[list[UInt8Array]]]()
    for at in cuts:
        found.setdefault(AROUND, []).append(lips.painted(speech.features(encode, at - half, at + half), half))
        for length_s, beyond_s in PLANS_S:
            length, beyond = round(length_s * FEATURES_PER_S), round(beyond_s * FEATURES_PER_S)
            before, after = pieces(speech, encode, at, length, beyond)
            joined = np.concatenate([before[: length - beyond], after[beyond:]])
            name = f"{length_s} s, {2 * beyond_s:g} s shared"
            found.setdefault(name, []).append(lips.painted(joined, length - beyond))
        print(at, flush=True)
    return found


def lip_rows(faces: dict[str, list[list[UInt8Array]]], mouth: SpokenMouth, cuts: list[int], lips: Lips) -> list[Any]:
    """A row for each key of `painted`."""
    gaps = {name: [np.array([*map(lips.gap, each)], np.float32) for each in found] for name, found in faces.items()}
    frames = [slice(at // 2 - FRAMES, at // 2 + FRAMES) for at in cuts]
    opening, right = np.concatenate([mouth.opening[each] for each in frames]), np.concatenate(gaps[AROUND])
    return [
        {
            "pieces": name,
            "gap_error": round(float(np.nanmean(np.abs(np.concatenate(found) - right))), 4),
            "opening": round(agreement(np.concatenate(found), opening, 0).correlation, 3),
            "closures": closures(found, [mouth.shut[each] for each in frames]),
        }
        for name, found in gaps.items()
    ]


def picture(faces: dict[str, list[list[UInt8Array]]], lips: Lips) -> "Figure":
    """Every other frame around the cut at which the first plan is most wrong; the cut is before the fifth column."""
    rows = [AROUND, *list(faces)[1:4]]
    wrong = [
        sum(abs(lips.gap(one) - lips.gap(other)) for one, other in zip(*pair, strict=True))
        for pair in zip(faces[rows[0]], faces[rows[1]], strict=True)
    ]
    worst, shown = int(np.argmax(wrong)), range(FRAMES - 8, FRAMES + 8, 2)
    size = (SHOWN_PX, SHOWN_PX)
    columns = {
        f"{(at - FRAMES) / MODEL_FPS:+.2f} s": [
            np.asarray(cv2.resize(faces[row][worst][at], size, interpolation=cv2.INTER_CUBIC), np.uint8) for row in rows
        ]
        for at in shown
    }
    return face_grid(rows, columns)


def closures(gaps: list[Float32Array], shut: list[Any]) -> str:
    """m, b, p shown shut, of all."""
    shown = [
        (one[s:e] < CLOSED_GAP).any() for one, where in zip(gaps, shut, strict=True) for s, e in runs_of_true(where)
    ]
    return f"{sum(shown)} of {len(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whisper", type=Path)
    parser.add_argument("--cuts", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    recordings = [case.recording for case in held_out_cases()]
    samples = np.tile(np.concatenate([each.samples for each in recordings]), 3)
    tracks = [each.track for each in recordings] * 3
    mouth = SpokenMouth(*(np.concatenate([getattr(t, name) for t in tracks]) for name in ("opening", "shut", "silent")))
    bundle = Bundle.load(demo_folder())
    with closing(open_model(bundle, Selection("cpu"), RuntimeOptions(), graphs_for(OPTIONS))) as model:
        power = np.concatenate(list(log_power_blocks([samples], filters_of(bundle))), axis=1)
        speech = Speech(scaled(power, float(power.max())), mouth)
        spoken, third = np.flatnonzero(~mouth.silent), len(mouth.silent) // 3
        even = np.linspace(third, 2 * third, arguments.cuts, endpoint=False)
        cuts = [2 * int(spoken[np.searchsorted(spoken, at)]) for at in even]
        encoders: dict[str, Encode] = {"built-in": model.audio_encoder}
        if arguments.whisper is not None:
            network = ctranslate2_encoder(arguments.whisper)

            @torch.no_grad()
            def encode(mel: Float32Array) -> Float32Array:
                return network(torch.from_numpy(mel)).numpy()

            encoders["Whisper"] = encode
        result: dict[str, Any] = {
            "command": "python -m scripts.measure_segments --whisper model.bin --json FILE",
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
            "cuts": len(cuts),
        }
        lips = Lips(model)
        faces = painted(speech, model.audio_encoder, cuts, lips)
        result["lips"] = lip_rows(faces, mouth, cuts, lips)
        print(json.dumps(result, indent=1), flush=True)
        if arguments.picture:
            write_png(arguments.picture, picture(faces, lips))
        for name, encode_mel in encoders.items():
            result[f"features, {name}"] = features_rows(speech, encode_mel, cuts)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
