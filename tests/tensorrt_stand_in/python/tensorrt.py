"""TensorRT's Python module over the stand-in's library, as far as latentsync-trt uses it.

tests/test_tensorrt_stand_in.py holds every name in it against NVIDIA's `tensorrt_rtx`, whose
interface is the same.
"""

import ctypes
from typing import Any

_library = ctypes.CDLL("libnvinfer.so.10")
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name)
    function.restype = result
    function.argtypes = arguments
    return function


_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_TEXT = ctypes.c_char_p
_BOOL = ctypes.c_bool
_make_logger = _function("stand_in_logger", _POINTER, _LOG)
_make_builder = _function("createInferBuilder_INTERNAL", _POINTER, _POINTER, _INT)
_make_network = _function("stand_in_network", _POINTER, _POINTER, ctypes.c_uint)
_layers = _function("stand_in_layers", _INT, _POINTER)
_layer_type = _function("stand_in_layer_type", _INT, _POINTER, _INT)
_set_decomposable = _function("stand_in_set_decomposable", None, _POINTER, _INT, _BOOL)
_make_parser = _function("createNvOnnxParser_INTERNAL", _POINTER, _POINTER, _POINTER, _INT)
_parse = _function("stand_in_parse", _BOOL, _POINTER, _TEXT)
_errors = _function("stand_in_errors", _INT, _POINTER)
_error = _function("stand_in_error", _TEXT, _POINTER, _INT, _INT)
_make_config = _function("stand_in_config", _POINTER, _POINTER)
_set_level = _function("stand_in_set_level", None, _POINTER, _INT)
_open_engine = _function("stand_in_engine", _POINTER, _POINTER, _TEXT, _SIZE)
_device_memory = _function("stand_in_device_memory", ctypes.c_longlong, _POINTER)
_make_profile = _function("stand_in_profile", _POINTER, _POINTER)
_set_shape = _function(
    "stand_in_set_shape", None, _POINTER, _TEXT, _INT, _INT, ctypes.POINTER(ctypes.c_longlong)
)
_add_profile = _function("stand_in_add_profile", None, _POINTER, _POINTER)
_build = _function("stand_in_build", _POINTER, _POINTER, _POINTER, _POINTER)
_size = _function("stand_in_size", _SIZE, _POINTER)
_data = _function("stand_in_data", _POINTER, _POINTER)


def _version() -> str:
    parts = [
        getattr(_library, f"getInferLib{part}Version")()
        for part in ("Major", "Minor", "Patch", "Build")
    ]
    return ".".join(map(str, parts))


__version__ = _version()


class ILogger:
    """What a caller's logger extends; severities compare as numbers, the worst is 0."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, message: str) -> None:
        """Takes a line."""
        raise NotImplementedError


class NetworkDefinitionCreationFlag:
    STRONGLY_TYPED = 1


class LayerType:
    """As TensorRT's; a layer that is no attention has another number."""

    ATTENTION_OUTPUT = 52


class IHostMemory(bytes):
    """Bytes with TensorRT's name for their length."""

    @property
    def nbytes(self) -> int:
        """Length."""
        return len(self)


def _bytes(memory: int) -> IHostMemory:
    return IHostMemory(ctypes.string_at(_data(memory), _size(memory)))


class _Logs:
    """What writes to a logger of the caller."""

    def __init__(self, logger: ILogger) -> None:
        self._function = _LOG(lambda severity, text: logger.log(severity, text.decode()))
        self.logger = _make_logger(self._function)


class _Made:
    """What the library made."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer


class Builder(_Logs):
    def __init__(self, logger: ILogger) -> None:
        super().__init__(logger)
        self.pointer = _make_builder(self.logger, 101401)
        if not self.pointer:
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> "INetworkDefinition":
        return INetworkDefinition(_make_network(self.pointer, flags))

    def create_builder_config(self) -> "IBuilderConfig":
        return IBuilderConfig(_make_config(self.pointer))

    def create_optimization_profile(self) -> "IOptimizationProfile":
        return IOptimizationProfile(_make_profile(self.pointer))

    def build_serialized_network(
        self, network: "INetworkDefinition", config: "IBuilderConfig"
    ) -> IHostMemory | None:
        memory = _build(self.pointer, network.pointer, config.pointer)
        if memory:
            return _bytes(memory)
        return None


class INetworkDefinition(_Made):
    @property
    def num_layers(self) -> int:
        return int(_layers(self.pointer))

    def get_layer(self, index: int) -> "ILayer":
        """As TensorRT's: of the base class."""
        return ILayer(self.pointer, index)


class ILayer:
    def __init__(self, network: int, index: int) -> None:
        self.network = network
        self.index = index

    @property
    def type(self) -> int:
        return int(_layer_type(self.network, self.index))


class IAttention:
    def __init__(self, layer: ILayer) -> None:
        self._layer = layer

    @property
    def decomposable(self) -> bool:
        raise NotImplementedError

    @decomposable.setter
    def decomposable(self, value: bool) -> None:
        _set_decomposable(self._layer.network, self._layer.index, value)


class IAttentionOutputLayer(ILayer):
    @property
    def attention(self) -> IAttention:
        return IAttention(self)


class IOptimizationProfile(_Made):
    def set_shape(
        self,
        input: str,  # noqa: A002
        min: tuple[int, ...],  # noqa: A002
        opt: tuple[int, ...],
        max: tuple[int, ...],  # noqa: A002
    ) -> None:
        for selector, sizes in enumerate((min, opt, max)):
            _set_shape(
                self.pointer,
                input.encode(),
                selector,
                len(sizes),
                (ctypes.c_longlong * len(sizes))(*sizes),
            )


class IBuilderConfig(_Made):
    @property
    def builder_optimization_level(self) -> int:
        return 3

    @builder_optimization_level.setter
    def builder_optimization_level(self, level: int) -> None:
        _set_level(self.pointer, level)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> None:
        _add_profile(self.pointer, profile.pointer)


class ICudaEngine(_Made):
    @property
    def device_memory_size_v2(self) -> int:
        return int(_device_memory(self.pointer))


class Runtime(_Logs):
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        pointer = _open_engine(self.logger, serialized_engine, len(serialized_engine))
        if pointer:
            return ICudaEngine(pointer)
        return None


class _ParserError:
    def __init__(self, parts: tuple[bytes, ...]) -> None:
        self._desc, self._name, self._operator = (part.decode() for part in parts)

    def desc(self) -> str:
        return self._desc

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator


class OnnxParser(_Logs):
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        super().__init__(logger)
        self._pointer = _make_parser(network.pointer, self.logger, 100)

    def parse_from_file(self, model: str) -> bool:
        return bool(_parse(self._pointer, model.encode()))

    @property
    def num_errors(self) -> int:
        return int(_errors(self._pointer))

    def get_error(self, index: int) -> _ParserError:
        return _ParserError(tuple(_error(self._pointer, index, part) for part in range(3)))
