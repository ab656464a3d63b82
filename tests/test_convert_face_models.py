"""The committed networks for faces and hands against the TFLite interpreter."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.runtime.engines.session import Session, SessionSettings
from tests.conftest import REPOSITORY

GRAPHS = REPOSITORY / "latentsync_trt" / "assets" / "face"
RECORD = Path(__file__).parent / "data" / "face_networks.npz"

PIXEL_RANGE = {
    "blaze_short": (-1, 1),
    "blaze_full": (-1, 1),
    "face_mesh": (0, 1),
    "palm": (0, 1),
    "hand": (0, 1),
}
RECORDED_ANCHORS = slice(None, None, 5)
"""Of each detector's boxes, every fifth is recorded."""
INTERPRETER_ERROR = 2e-3
"""Input pixels and logits, which reach 185: the order of float32 sums differs between processors;
1.4e-4 was seen.
"""


@pytest.mark.parametrize("name", sorted(PIXEL_RANGE))
def test_committed_graphs_reproduce_the_interpreter(name: str) -> None:
    session = Session(GRAPHS / f"{name}.onnx", SessionSettings(intra_op_threads=1))
    low, high = PIXEL_RANGE[name]
    with np.load(RECORD) as recorded:
        picture = recorded["picture"]
        side_px = int(session.inputs[0].shape[2])
        enlarged = np.arange(side_px) * len(picture) // side_px
        large = picture[enlarged][:, enlarged].astype(np.float32) / 255 * (high - low) + low
        results = session.run(
            {"image": np.ascontiguousarray(large.transpose(2, 0, 1)[None], np.float32)}
        )
        for info, result in zip(session.outputs, results, strict=True):
            wanted = recorded[f"{name}_{info.name}"].reshape(-1)
            ours = (result[:, RECORDED_ANCHORS] if info.name == "boxes" else result).reshape(-1)
            assert ours.shape == wanted.shape
            assert np.abs(ours - wanted).max() < INTERPRETER_ERROR, info.name
