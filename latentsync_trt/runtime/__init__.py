"""Whatever runs graphs; the only user of ONNX Runtime and TensorRT."""

import os

# ONNX Runtime's packages send usage data to Microsoft unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
