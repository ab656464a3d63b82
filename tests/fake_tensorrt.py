"""A fake of TensorRT's Python module. An "engine" is a JSON of the settings that the builder got.

$FAULT: how it fails.
"""

import json
import os
import types
from pathlib import Path

__version__ = "10.14.1.48"
FAULT = os.environ.get("FAULT", "")
NetworkDefinitionCreationFlag = types.SimpleNamespace(STRONGLY_TYPED=3)
MemoryPoolType = types.SimpleNamespace(WORKSPACE="workspace")
LayerType = types.SimpleNamespace(ATTENTION_INPUT=51, ATTENTION_OUTPUT=52)
ComputeCapability = types.SimpleNamespace(SM89="8.9", SM120="12.0")
MESSAGES = {
    "fails": [(2, "slow"), (1, "no implementation\nof a layer"), (0, "more")],
    "warns": [(3, "hello"), (2, "falls back")],
    "silent": [],
    "memory": [(2, "Requested size was 4 bytes, which could not be allocated"), (1, "no tactic")],
}


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class ILayer:
    def __init__(self, kind):
        self.type = kind


class IAttentionOutputLayer(ILayer):
    @property
    def attention(self):
        return ATTENTION


ATTENTION = types.SimpleNamespace(decomposable=False)
"""That of every graph."""


class Runtime:
    def __init__(self, log):
        self.log = log

    def deserialize_cuda_engine(self, engine):
        if FAULT == "no memory":
            self.log.log(ILogger.ERROR, "Requested size was 4 bytes, which could not be allocated")
            return None
        return types.SimpleNamespace(device_memory_size_v2=4321)


class Memory(bytes):
    nbytes = property(len)


class Timings:
    def __init__(self, content):
        self.content = content

    def serialize(self):
        return Memory(b"more than " + self.content)


class Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, minimum, optimum, maximum):
        self.shapes[name] = minimum, optimum, maximum


class Config:
    def __init__(self, log):
        self.log, self.settings, self.timings = log, {}, Timings(b"")

    def set_compute_capability(self, capability, index):
        self.settings["target"] = [capability, index, self.num_compute_capabilities]

    def set_memory_pool_limit(self, pool, size):
        self.settings[pool] = size

    def add_optimization_profile(self, profile):
        self.settings["profile"] = profile.shapes

    def create_timing_cache(self, content):
        if content == b"damaged":
            self.log.log(ILogger.ERROR, "the timing cache is damaged")
            return None
        return Timings(content)

    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        if cache.content == b"of another driver":
            self.log.log(ILogger.ERROR, "made with another driver")
            return False
        self.timings = cache
        return True

    def get_timing_cache(self):
        return self.timings


class Error:
    def __init__(self, *parts):
        self.desc, self.node_operator, self.node_name = ((lambda part=part: part) for part in parts)


class OnnxParser:
    def __init__(self, network, log):
        self.network, self.errors = network, []

    num_errors = property(lambda self: len(self.errors))

    def get_error(self, index):
        return self.errors[index]

    def parse_from_file(self, path):
        assert os.sep not in path
        self.network.content = Path(path).read_text(encoding="utf-8")
        if FAULT == "parse":
            self.errors = [Error("false", "Foo", "a"), Error("of rank 3", "Bar", "b"), Error("false", "Foo", "c")]
        return not self.errors


class Builder:
    def __init__(self, log):
        self.log = log
        if FAULT == "prints":
            os.write(1, b"loading...")
            os.write(2, b"TensorRT prints a lot\n")

    create_optimization_profile = staticmethod(Profile)

    def create_network(self, flags):
        layers = [ILayer(LayerType.ATTENTION_INPUT), ILayer(LayerType.ATTENTION_OUTPUT), *map(ILayer, range(5))]
        return types.SimpleNamespace(num_layers=7, get_layer=layers.__getitem__, flags=flags)

    def create_builder_config(self):
        return Config(self.log)

    def build_serialized_network(self, network, config):
        if FAULT in MESSAGES:
            for severity, message in MESSAGES[FAULT]:
                self.log.log(severity, message)
            return None
        self.log.log(ILogger.ERROR, "a tactic ran out of memory, and another was taken")
        level = getattr(config, "builder_optimization_level", None)
        settings = {
            **config.settings,
            "flags": network.flags,
            "level": level,
            "decomposable": ATTENTION.decomposable,
            "timings": config.timings.content.decode(),
            "graph": network.content,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        return Memory(json.dumps(settings).encode())
