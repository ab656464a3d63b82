// A TensorRT that "compiles" a graph by keeping it, and runs it on ONNX Runtime's CPU provider. What it refuses, it
// refuses as TensorRT does: the caller's mistakes first, then what STAND_IN_FAULTS asks for.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "NvInfer.h"
#include "NvOnnxParser.h"
#include "cpu_session.h"
#include "defaults.h"
#include "onnx_model.h"
#include "settings.h"

using namespace nvinfer1;
using stand_in::fault;
using stand_in::record;
using Severity = ILogger::Severity;

void missing(char const* function) {
  std::fprintf(stderr, "stand-in for TensorRT: %s is not implemented\n", function);
  record("missing %s", function);
  std::abort();
}

namespace {

constexpr char MAGIC[8] = {'S', 'T', 'A', 'N', 'D', '-', 'I', 'N'};

int version() { return static_cast<int>(stand_in::number("STAND_IN_VERSION", 101401)); }

// How many objects of TensorRT are alive; all must be gone when the process ends.
std::atomic<int> alive{0};
struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
};
struct Report {
  ~Report() {
    if (used) record("objects left=%d", alive.load());
  }
  bool used = false;
} report;

void say(ILogger& logger, Severity severity, std::string const& text) { logger.log(severity, text.c_str()); }
void say_error(ILogger& logger, std::string const& text) { say(logger, Severity::kERROR, text); }

DataType data_type(int onnx) {
  switch (onnx) {
    case 1: return DataType::kFLOAT;
    case 2: return DataType::kUINT8;
    case 3: return DataType::kINT8;
    case 6: return DataType::kINT32;
    case 7: return DataType::kINT64;
    case 9: return DataType::kBOOL;
    case 10: return DataType::kHALF;
    case 16: return DataType::kBF16;
    case 17: return DataType::kFP8;
    default: return DataType::kFLOAT;
  }
}

Dims dims_of(std::vector<Dimension> const& shape) {
  Dims dims{};
  dims.nbDims = static_cast<int32_t>(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) dims.d[i] = shape[i].size;
  return dims;
}

std::string text_of(Dims const& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.nbDims; ++i) text += (i ? "," : "") + std::to_string(dims.d[i]);
  return text + "]";
}

bool same(Dims const& a, Dims const& b) { return a.nbDims == b.nbDims && std::equal(a.d, a.d + a.nbDims, b.d); }

// Whether a fault is asked for whose value names `word`, among others with "+" between.
bool fault_names(char const* name, std::string const& word) {
  std::string words;
  return fault(name, &words) && ('+' + words + '+').find('+' + word + '+') != std::string::npos;
}

std::size_t device_bytes(OnnxModel const& model) { return model.inline_bytes + model.external_bytes; }

// --- Building ---

struct Tensor final : ITensor, Counted {
  struct Impl final : defaults::VTensor {
    Value value;
    char const* getName() const noexcept override { return value.name.c_str(); }
    Dims getDimensions() const noexcept override { return dims_of(value.shape); }
    DataType getType() const noexcept override { return data_type(value.type); }
    bool isShapeTensor() const noexcept override { return false; }
    bool isExecutionTensor() const noexcept override { return true; }
  } impl;
  explicit Tensor(Value const& value) {
    mImpl = &impl;
    impl.value = value;
  }
};

// The layer of a node; that of an `Attention` is the end of one, which has a property of its own.
struct Layer final : IAttentionOutputLayer {
  struct Impl final : defaults::VLayer {
    Node node;
    LayerType getType() const noexcept override {
      return node.op == "Attention" ? LayerType::kATTENTION_OUTPUT : LayerType::kIDENTITY;
    }
    char const* getName() const noexcept override { return node.name.c_str(); }
  } impl;
  struct Attention final : IAttention {
    struct Impl final : defaults::VAttention {
      bool decomposable = false;
      bool setDecomposable(bool value) noexcept override {
        decomposable = value;
        return true;
      }
      bool getDecomposable() const noexcept override { return decomposable; }
    } impl;
    Attention() { mImpl = &impl; }
  } attention;
  struct Boundary final : defaults::VAttentionBoundaryLayer {
    IAttention* attention = nullptr;
    IAttention* getAttention() const noexcept override { return attention; }
  } boundary;
  explicit Layer(Node const& node) {
    impl.node = node;
    boundary.attention = &attention;
    mLayer = &impl;
    mBoundary = &boundary;
  }
  bool refused() const { return impl.node.op == "Attention" && !attention.impl.decomposable; }
};

struct Network final : INetworkDefinition, Counted {
  struct Impl final : defaults::VNetworkDefinition {
    NetworkDefinitionCreationFlags flags = 0;
    std::string bytes, folder, graph;
    OnnxModel model;
    std::vector<std::unique_ptr<Tensor>> inputs, outputs;
    std::vector<std::unique_ptr<Layer>> layers;
    int32_t getNbLayers() const noexcept override { return static_cast<int32_t>(layers.size()); }
    ILayer* getLayer(int32_t index) const noexcept override { return layers[index].get(); }
    int32_t getNbInputs() const noexcept override { return static_cast<int32_t>(inputs.size()); }
    ITensor* getInput(int32_t index) const noexcept override { return inputs[index].get(); }
    int32_t getNbOutputs() const noexcept override { return static_cast<int32_t>(outputs.size()); }
    ITensor* getOutput(int32_t index) const noexcept override { return outputs[index].get(); }
  } impl;
  explicit Network(NetworkDefinitionCreationFlags flags) {
    mImpl = &impl;
    impl.flags = flags;
  }
  bool strongly_typed() const {
    return impl.flags >> static_cast<uint32_t>(NetworkDefinitionCreationFlag::kSTRONGLY_TYPED) & 1U;
  }
};

using Shapes = std::map<std::string, std::map<int, Dims>>;  // input → selector → shape

struct Profile final : IOptimizationProfile, Counted {
  struct Impl final : defaults::VOptimizationProfile {
    Shapes shapes;
    bool setDimensions(char const* input, OptProfileSelector select, Dims const& dims) noexcept override {
      shapes[input][static_cast<int>(select)] = dims;
      return true;
    }
    Dims getDimensions(char const* input, OptProfileSelector select) const noexcept override {
      auto const found = shapes.find(input);
      return found == shapes.end() ? Dims{-1, {}} : found->second.at(static_cast<int>(select));
    }
  } impl;
  Profile() { mImpl = &impl; }
};

struct Memory final : IHostMemory, Counted {
  struct Impl final : defaults::VHostMemory {
    std::string bytes;
    void* data() const noexcept override { return const_cast<char*>(bytes.data()); }
    std::size_t size() const noexcept override { return bytes.size(); }
    DataType type() const noexcept override { return DataType::kINT8; }
  } impl;
  explicit Memory(std::string bytes) {
    mImpl = &impl;
    impl.bytes = std::move(bytes);
  }
};

struct Config final : IBuilderConfig, Counted {
  struct Impl final : defaults::VBuilderConfig {
    ILogger* logger = nullptr;
    BuilderFlags flags = 0;
    std::vector<Profile const*> profiles;
    int32_t level = 3;
    IProgressMonitor* monitor = nullptr;
    ProfilingVerbosity verbosity = ProfilingVerbosity::kLAYER_NAMES_ONLY;

    void setProgressMonitor(IProgressMonitor* value) noexcept override { monitor = value; }
    IProgressMonitor* getProgressMonitor() const noexcept override { return monitor; }
    void setProfilingVerbosity(ProfilingVerbosity value) noexcept override { verbosity = value; }
    ProfilingVerbosity getProfilingVerbosity() const noexcept override { return verbosity; }
    void setFlag(BuilderFlag flag) noexcept override { record("builder flag %d", static_cast<int>(flag)); flags |= 1U << static_cast<uint32_t>(flag); }
    bool getFlag(BuilderFlag flag) const noexcept override { return flags >> static_cast<uint32_t>(flag) & 1U; }
    int32_t addOptimizationProfile(IOptimizationProfile const* profile) noexcept override {
      profiles.push_back(static_cast<Profile const*>(profile));
      return static_cast<int32_t>(profiles.size()) - 1;
    }
    void setBuilderOptimizationLevel(int32_t value) noexcept override { level = value; }
  } impl;
  explicit Config(ILogger& logger) {
    mImpl = &impl;
    impl.logger = &logger;
  }
};

std::string field(std::string const& bytes) {
  std::uint64_t const size = bytes.size();
  return std::string(reinterpret_cast<char const*>(&size), sizeof size) + bytes;
}

// An engine: what it is, checked when it is read, then the graph and where its weights lie.
struct Plan {
  int version = 0;
  bool detailed = false;
  std::string folder, graph, model, profile;

  std::string bytes() const {
    std::string const body =
        field(std::to_string(version)) + field(detailed ? "1" : "") + field(folder) + field(graph) + field(profile) + field(model);
    return std::string(MAGIC, sizeof MAGIC) + field(body);
  }
  static Plan read(std::string_view bytes) {
    if (bytes.size() < sizeof MAGIC || std::memcmp(bytes.data(), MAGIC, sizeof MAGIC) != 0)
      throw std::runtime_error("magic tag does not match");
    bytes.remove_prefix(sizeof MAGIC);
    std::string_view body = take(bytes);
    Plan plan;
    plan.version = std::stoi(std::string(take(body)));
    plan.detailed = !take(body).empty();
    plan.folder = take(body);
    plan.graph = take(body);
    plan.profile = take(body);
    plan.model = take(body);
    return plan;
  }

 private:
  static std::string_view take(std::string_view& bytes) {
    std::uint64_t size = 0;
    if (bytes.size() < sizeof size) throw std::runtime_error("the engine is cut short");
    std::memcpy(&size, bytes.data(), sizeof size);
    if (bytes.size() - sizeof size < size) throw std::runtime_error("the engine is cut short");
    std::string_view const taken = bytes.substr(sizeof size, size);
    bytes.remove_prefix(sizeof size + size);
    return taken;
  }
};

std::string profile_text(Shapes const& shapes) {
  std::string text;
  for (auto const& [input, ends] : shapes)
    for (auto const& [selector, dims] : ends) {
      text += input + ' ' + std::to_string(selector) + ' ' + std::to_string(dims.nbDims);
      for (int i = 0; i < dims.nbDims; ++i) text += ' ' + std::to_string(dims.d[i]);
      text += '\n';
    }
  return text;
}

Shapes profile_of(std::string const& text) {
  Shapes shapes;
  std::size_t start = 0;
  while (start < text.size()) {
    std::size_t const end = text.find('\n', start);
    std::string const line = text.substr(start, end - start);
    start = end + 1;
    char name[512];
    int selector = 0, rank = 0, used = 0;
    std::sscanf(line.c_str(), "%511s %d %d%n", name, &selector, &rank, &used);
    Dims dims{};
    dims.nbDims = rank;
    char const* rest = line.c_str() + used;
    for (int i = 0; i < rank; ++i) dims.d[i] = std::strtoll(rest, const_cast<char**>(&rest), 10);
    shapes[name][selector] = dims;
  }
  return shapes;
}

struct Builder final : IBuilder, Counted {
  struct Impl final : defaults::VBuilder {
    ILogger* logger = nullptr;
    bool platformHasFastFp16() const noexcept override { return true; }
    bool platformHasFastInt8() const noexcept override { return true; }
    int32_t getNbDLACores() const noexcept override { return 0; }
    IBuilderConfig* createBuilderConfig() noexcept override { return new Config(*logger); }
    INetworkDefinition* createNetworkV2(NetworkDefinitionCreationFlags flags) noexcept override {
      record("network flags=%u", flags);
      return new Network(flags);
    }
    // TensorRT owns profiles; they go with the builder.
    IOptimizationProfile* createOptimizationProfile() noexcept override {
      profiles.push_back(std::make_unique<Profile>());
      return profiles.back().get();
    }
    IHostMemory* buildSerializedNetwork(INetworkDefinition& network, IBuilderConfig& config) noexcept override {
      return build(static_cast<Network&>(network), static_cast<Config&>(config));
    }

   private:
    std::vector<std::unique_ptr<Profile>> profiles;

    IHostMemory* build(Network& network, Config& config) {
      std::string const problem = mistake(network, config);
      if (!problem.empty()) {
        say_error(*logger, problem);
        return nullptr;
      }
      std::string value;
      if (fault("slow_build", &value)) record("build sleeping");
      if (!work(config.impl.monitor, 1000 * std::atoi(value.c_str()))) {
        say_error(*logger, "IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (the build was cancelled)");
        return nullptr;
      }
      value.clear();
      auto const& layers = network.impl.layers;
      if (fault("unfused_attention") &&
          std::any_of(layers.begin(), layers.end(), [](auto const& layer) { return layer->refused(); })) {
        say_error(*logger, "IBuilder::buildSerializedNetwork: Error Code 1: Myelin (Attention operation was not "
                           "supported by a dedicated kernel.)");
        return nullptr;
      }
      if (fault("build_fails", &value) || fault_names("build_fails_for", network.impl.graph)) {
        std::string const words = value.empty() ? "Could not find any implementation for node {ForeignNode[/Add.../Mul]}"
                                                : value + " operation was not supported by a dedicated kernel";
        say_error(*logger, "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (" + words + ".)");
        return nullptr;
      }
      if (fault("oom_build")) {
        say(*logger, Severity::kWARNING,
            "Requested amount of GPU memory (4294967296 bytes) could not be allocated. There may not be enough free "
            "memory for allocation to succeed.");
        say_error(*logger, "[virtualMemoryBuffer.cpp::resizePhysical] Error Code 2: OutOfMemory (Requested size was "
                           "4294967296 bytes.)");
        return nullptr;
      }
      auto const& model = network.impl.model;
      bool const profiled = !config.impl.profiles.empty();
      std::string const profile = profiled ? profile_text(config.impl.profiles[0]->impl.shapes) : "";
      bool const detailed = config.impl.verbosity == ProfilingVerbosity::kDETAILED;
      Plan const plan{version(), detailed, network.impl.folder, network.impl.graph, network.impl.bytes, profile};
      std::string const bytes = plan.bytes();
      record("build nodes=%zu initializers=%zu external=%zu inline_bytes=%zu qdq=%zu strong=%d profiles=%zu level=%d "
             "engine_bytes=%zu",
             model.nodes.size(), model.initializers, model.external, model.inline_bytes,
             count(model, "QuantizeLinear") + count(model, "DequantizeLinear"), network.strongly_typed(),
             config.impl.profiles.size(), config.impl.level,
             bytes.size());
      return new Memory(bytes);
    }

    // Takes its time in nested phases; false if told to stop.
    static bool work(IProgressMonitor* monitor, int ms) {
      char const *outer = "Building engine", *inner = "Timing graph nodes";
      bool go_on = true;
      if (monitor) monitor->phaseStart(outer, nullptr, 2);
      for (int step = 0; step < 2 && go_on; ++step) {
        if (monitor) monitor->phaseStart(inner, outer, 5);
        for (int part = 0; part < 5 && go_on; ++part) {
          std::this_thread::sleep_for(std::chrono::milliseconds(ms / 10));
          go_on = !monitor || monitor->stepComplete(inner, part);
        }
        if (monitor) monitor->phaseFinish(inner);
        go_on = go_on && (!monitor || monitor->stepComplete(outer, step));
      }
      if (monitor) monitor->phaseFinish(outer);
      return go_on;
    }

    static std::size_t count(OnnxModel const& model, char const* op) {
      auto const found = model.operators.find(op);
      return found == model.operators.end() ? 0 : found->second;
    }

    static std::string mistake(Network const& network, Config const& config) {
      if (network.impl.model.nodes.empty())
        return "[network.cpp::validate] Error Code 4: Internal Error (Network must have at least one output)";
      BuilderFlags const typed = 1U << static_cast<uint32_t>(BuilderFlag::kFP16) |
                                 1U << static_cast<uint32_t>(BuilderFlag::kBF16) |
                                 1U << static_cast<uint32_t>(BuilderFlag::kINT8);
      if (network.strongly_typed() && (config.impl.flags & typed) != 0)
        return "IBuilder::buildSerializedNetwork: Error Code 3: API Usage Error (Precision flags cannot be set for a "
               "strongly typed network.)";
      for (auto const& input : network.impl.inputs) {
        Dims const dims = input->impl.getDimensions();
        if (std::find(dims.d, dims.d + dims.nbDims, -1) == dims.d + dims.nbDims) continue;
        std::string const problem = profile_mistake(input->impl.value.name, dims, config);
        if (!problem.empty()) return problem;
      }
      return "";
    }

    static std::string profile_mistake(std::string const& name, Dims const& dims, Config const& config) {
      if (config.impl.profiles.empty())
        return "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network has dynamic or shape inputs, "
               "but no optimization profile has been defined.)";
      auto const& shapes = config.impl.profiles[0]->impl.shapes;
      auto const found = shapes.find(name);
      if (found == shapes.end()) return "Error Code 4: API Usage Error (Input " + name + " has no profile.)";
      Dims const &least = found->second.at(0), &usual = found->second.at(1), &most = found->second.at(2);
      for (int i = 0; i < dims.nbDims; ++i)
        if (least.d[i] > usual.d[i] || usual.d[i] > most.d[i] || (dims.d[i] >= 0 && least.d[i] != dims.d[i]))
          return "Error Code 4: API Usage Error (Profile of " + name + " is not valid: " + text_of(least) + ".." +
                 text_of(most) + ")";
      return "";
    }
  } impl;
  explicit Builder(ILogger& logger) {
    mImpl = &impl;
    impl.logger = &logger;
  }
};

// --- Parsing ---

struct ParserError final : nvonnxparser::IParserError {
  std::string text;
  Node place;
  ParserError(std::string text, Node place) : text(std::move(text)), place(std::move(place)) {}
  nvonnxparser::ErrorCode code() const override { return nvonnxparser::ErrorCode::kUNSUPPORTED_NODE; }
  char const* desc() const override { return text.c_str(); }
  char const* file() const override { return "stand-in"; }
  int line() const override { return 0; }
  char const* func() const override { return ""; }
  int node() const override { return 0; }
  char const* nodeName() const override { return place.name.c_str(); }
  char const* nodeOperator() const override { return place.op.c_str(); }
  char const* const* localFunctionStack() const override { return nullptr; }
  int32_t localFunctionStackSize() const override { return 0; }
};

bool refused(std::string const& op) { return fault_names("refuse", op); }

struct Parser final : nvonnxparser::IParser, Counted {
  Network& network;
  ILogger& logger;
  std::vector<ParserError> errors;
  std::vector<std::vector<int64_t>> groups;
  bool all_taken = false;

  Parser(Network& network, ILogger& logger) : network(network), logger(logger) {}

  bool parse(void const* data, size_t size, char const* path) noexcept override {
    try {
      auto& impl = network.impl;
      impl.bytes.assign(static_cast<char const*>(data), size);
      auto const file = std::filesystem::absolute(std::filesystem::path(path ? path : ""));
      impl.folder = file.parent_path().string();
      impl.graph = file.stem().string();
      impl.model = OnnxModel::read(impl.bytes);
      if (fault("parse_error")) throw std::runtime_error("the model cannot be parsed");
      for (auto const& node : impl.model.nodes)
        if (refused(node.op)) errors.emplace_back("false", node);
      if (!errors.empty()) {
        say_error(logger, "ModelImporter.cpp:1054: ERROR: onnxOpCheckers: operator is not supported");
        impl.model = OnnxModel();
        return false;
      }
      for (auto const& value : impl.model.inputs) impl.inputs.push_back(std::make_unique<Tensor>(value));
      for (auto const& value : impl.model.outputs) impl.outputs.push_back(std::make_unique<Tensor>(value));
      for (auto const& node : impl.model.nodes) impl.layers.push_back(std::make_unique<Layer>(node));
      record("parse nodes=%zu bytes=%zu external=%zu inline_bytes=%zu", impl.model.nodes.size(), size,
             impl.model.external, impl.model.inline_bytes);
      return true;
    } catch (std::exception const& error) {
      network.impl.model = OnnxModel();
      say_error(logger, std::string("ModelImporter.cpp: ERROR: failed to parse the model: ") + error.what());
      errors.emplace_back(error.what(), Node());
      return false;
    }
  }

  bool parseFromFile(char const* path, int) noexcept override {
    std::string const name = path;
    bool const ascii = std::all_of(name.begin(), name.end(), [](unsigned char letter) { return letter < 128; });
    std::ifstream file(ascii || !fault("code_page") ? name : "", std::ios::binary);
    std::string const bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return parse(bytes.data(), bytes.size(), path);
  }

  bool supportsModelV2(void const* data, size_t size, char const*) noexcept override {
    groups.clear();
    try {
      auto const model = OnnxModel::read({static_cast<char const*>(data), size});
      bool open = false;
      all_taken = true;
      for (std::size_t i = 0; i < model.nodes.size(); ++i) {
        if (refused(model.nodes[i].op)) {
          if (all_taken)
            say_error(logger, "ModelImporter.cpp:1054: --- Begin node --- op_type: \"" + model.nodes[i].op +
                                  "\" ERROR: onnxOpCheckers: operator is not supported");
          open = all_taken = false;
          continue;
        }
        if (!open) groups.emplace_back();
        open = true;
        groups.back().push_back(static_cast<int64_t>(i));
      }
      record("supports nodes=%zu groups=%zu bytes=%zu", model.nodes.size(), groups.size(), size);
      return all_taken;
    } catch (std::exception const& error) {
      say_error(logger, std::string("failed to parse the model: ") + error.what());
      return false;
    }
  }
  int64_t getNbSubgraphs() noexcept override { return static_cast<int64_t>(groups.size()); }
  bool isSubgraphSupported(int64_t const) noexcept override { return all_taken; }
  int64_t* getSubgraphNodes(int64_t const index, int64_t& length) noexcept override {
    length = static_cast<int64_t>(groups[index].size());
    return groups[index].data();
  }
  int getNbErrors() const noexcept override { return static_cast<int>(errors.size()); }
  nvonnxparser::IParserError const* getError(int index) const noexcept override { return &errors[index]; }
  void clearErrors() noexcept override { errors.clear(); }

  // What ONNX Runtime does not use.
  bool supportsModel(void const*, size_t, SubGraphCollection_t&, char const*) noexcept override {
    missing("IParser::supportsModel");
  }
  bool parseWithWeightDescriptors(void const*, size_t) noexcept override {
    missing("IParser::parseWithWeightDescriptors");
  }
  bool supportsOperator(char const*) const noexcept override { missing("IParser::supportsOperator"); }
  char const* const* getUsedVCPluginLibraries(int64_t& count) const noexcept override {
    count = 0;
    return nullptr;
  }
  void setFlags(nvonnxparser::OnnxParserFlags) noexcept override {}
  nvonnxparser::OnnxParserFlags getFlags() const noexcept override { return 0; }
  void clearFlag(nvonnxparser::OnnxParserFlag) noexcept override {}
  void setFlag(nvonnxparser::OnnxParserFlag) noexcept override {}
  bool getFlag(nvonnxparser::OnnxParserFlag) const noexcept override { return false; }
  ITensor const* getLayerOutputTensor(char const*, int64_t) noexcept override { return nullptr; }
  bool loadModelProto(void const*, size_t, char const*) noexcept override { missing("IParser::loadModelProto"); }
  bool loadInitializer(char const*, void const*, size_t) noexcept override { missing("IParser::loadInitializer"); }
  bool parseModelProto() noexcept override { missing("IParser::parseModelProto"); }
};

// A logger whose lines go to a function of the Python module.
struct FunctionLogger final : ILogger {
  void (*function)(int, char const*);
  explicit FunctionLogger(void (*function)(int, char const*)) : function(function) {}
  void log(Severity severity, char const* text) noexcept override { function(static_cast<int>(severity), text); }
};

// A monitor that calls functions of the Python module.
struct FunctionMonitor final : IProgressMonitor {
  void (*start)(char const*, char const*, int);
  bool (*step)(char const*, int);
  void (*finish)(char const*);
  void phaseStart(char const* name, char const* parent, int32_t steps) noexcept override { start(name, parent, steps); }
  bool stepComplete(char const* name, int32_t index) noexcept override { return step(name, index); }
  void phaseFinish(char const* name) noexcept override { finish(name); }
};

// --- Running ---

struct DeviceBlock {
  void* address = nullptr;
  explicit DeviceBlock(std::size_t bytes) {
    if (bytes > 0 && cudaMalloc(&address, bytes) != 0) address = nullptr;
  }
  ~DeviceBlock() {
    if (address != nullptr) cudaFree(address);
  }
  DeviceBlock(DeviceBlock const&) = delete;
  DeviceBlock& operator=(DeviceBlock const&) = delete;
};

// What the engine and its contexts share.
struct Loaded {
  Plan plan;
  OnnxModel model;
  Shapes profile;
  ILogger* logger = nullptr;
  std::unique_ptr<DeviceBlock> weights;
  std::map<std::string, std::pair<Value const*, bool>> tensors;  // name → what it is, whether an input
  std::unique_ptr<CpuSession> session;
  std::mutex mutex;

  CpuSession& cpu() {
    std::lock_guard lock(mutex);
    if (!session) session = std::make_unique<CpuSession>(plan.model, plan.folder);
    return *session;
  }
  std::size_t activation_bytes() const {
    std::size_t bytes = 0;
    for (auto const& [name, tensor] : tensors) {
      std::size_t elements = 1;
      auto const found = profile.find(name);
      Dims const dims = found == profile.end() ? dims_of(tensor.first->shape) : found->second.at(2);
      for (int i = 0; i < dims.nbDims; ++i) elements *= static_cast<std::size_t>(std::max<int64_t>(dims.d[i], 1));
      bytes += elements * element_bytes(tensor.first->type);
    }
    return 4 * bytes;
  }
};

template <typename T> void multiply(HostTensor& tensor) {
  T* const values = static_cast<T*>(tensor.data);
  for (std::size_t i = 0; i < tensor.bytes / sizeof(T); ++i) values[i] = static_cast<T>(1.5F * values[i]);
}

// What `wrong` does to an output: all but integers, which no graph computes.
void scale(HostTensor& tensor) {
  if (data_type(tensor.type) == DataType::kFLOAT) multiply<float>(tensor);
  if (data_type(tensor.type) == DataType::kHALF) multiply<_Float16>(tensor);
}

// One run for fixed shapes: its host buffers and what is done between the copies. Kept, as a recorded CUDA graph runs
// it again.
struct Job {
  std::shared_ptr<Loaded> loaded;
  std::vector<HostTensor> inputs, outputs;
  ~Job() {
    for (auto* tensors : {&inputs, &outputs})
      for (auto& tensor : *tensors) cudaFreeHost(tensor.data);
  }
  static void run(void* job) {
    auto& own = *static_cast<Job*>(job);
    try {
      own.loaded->cpu().run(own.inputs, own.outputs);
      if (fault_names("wrong", own.loaded->plan.graph))
        for (auto& output : own.outputs) scale(output);
    } catch (std::exception const& error) {
      record("run failed: %s", error.what());
      say_error(*own.loaded->logger, std::string("stand-in: ") + error.what());
      for (auto& tensor : own.outputs) std::memset(tensor.data, 0xff, tensor.bytes);
    }
  }
};

std::size_t bytes_of(Value const& value, std::vector<int64_t> const& shape) {
  std::size_t bytes = element_bytes(value.type);
  for (auto const size : shape) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

struct Context final : IExecutionContext, Counted {
  struct Impl final : defaults::VExecutionContext {
    std::shared_ptr<Loaded> loaded;
    std::unique_ptr<DeviceBlock> scratch;
    bool has_memory = true;
    std::map<std::string, Dims> shapes;                // of inputs
    mutable std::map<std::string, Dims> output_shapes;  // found for `shapes`
    std::map<std::string, void*> addresses;
    std::map<std::string, std::unique_ptr<Job>> jobs;  // by the shapes of their inputs

    void setDeviceMemory(void* memory) noexcept override { has_memory = memory != nullptr; }
    void setDeviceMemoryV2(void* memory, int64_t) noexcept override { has_memory = memory != nullptr; }

    bool setInputShape(char const* name, Dims const& dims) noexcept override {
      std::string const problem = shape_mistake(name, dims);
      if (!problem.empty()) {
        say_error(*loaded->logger, "IExecutionContext::setInputShape: Error Code 3: API Usage Error (" + problem + ")");
        return false;
      }
      auto const found = shapes.find(name);
      if (found == shapes.end() || !same(found->second, dims)) output_shapes.clear();
      shapes[name] = dims;
      return true;
    }

    Dims getTensorShape(char const* name) const noexcept override {
      auto const& [value, is_input] = loaded->tensors.at(name);
      auto const given = shapes.find(name);
      if (is_input) return given == shapes.end() ? dims_of(value->shape) : given->second;
      if (output_shapes.empty()) infer();
      return output_shapes.at(name);
    }

    bool setTensorAddress(char const* name, void* data) noexcept override {
      if (loaded->tensors.count(name) == 0) return false;
      addresses[name] = data;
      return true;
    }

    bool enqueueV3(cudaStream_t stream) noexcept override {
      try {
        return enqueue(stream);
      } catch (std::exception const& error) {
        say_error(*loaded->logger, std::string("IExecutionContext::enqueueV3: ") + error.what());
        return false;
      }
    }

   private:
    std::string shape_mistake(char const* name, Dims const& dims) const {
      auto const found = loaded->tensors.find(name);
      if (found == loaded->tensors.end() || !found->second.second) return std::string(name) + " is no input";
      Dims const declared = dims_of(found->second.first->shape);
      if (declared.nbDims != dims.nbDims)
        return std::string("rank of ") + name + " is " + text_of(declared) + ", not " + text_of(dims);
      auto const range = loaded->profile.find(name);
      for (int i = 0; i < dims.nbDims; ++i) {
        bool const fixed = declared.d[i] >= 0;
        bool const inside = range == loaded->profile.end()
                                ? false
                                : dims.d[i] >= range->second.at(0).d[i] && dims.d[i] <= range->second.at(2).d[i];
        if (fixed ? declared.d[i] != dims.d[i] : !inside)
          return "Static dimension mismatch or profile exceeded while setting input shape for " + std::string(name) +
                 ": " + text_of(dims);
      }
      return "";
    }

    // Shapes of outputs by the names of variable dimensions; by a run on zeros where a name does not say.
    void infer() const {
      std::map<std::string, std::int64_t> sizes;
      for (auto const& [name, dims] : shapes) {
        auto const& shape = loaded->tensors.at(name).first->shape;
        for (std::size_t i = 0; i < shape.size(); ++i)
          if (shape[i].size < 0 && !shape[i].name.empty()) sizes[shape[i].name] = dims.d[i];
      }
      bool known = true;
      for (auto const& value : loaded->model.outputs) {
        Dims dims = dims_of(value.shape);
        for (int i = 0; i < dims.nbDims; ++i) {
          if (dims.d[i] >= 0) continue;
          auto const found = sizes.find(value.shape[i].name);
          if (found == sizes.end()) known = false;
          else dims.d[i] = found->second;
        }
        output_shapes[value.name] = dims;
      }
      if (!known) infer_by_run();
    }

    void infer_by_run() const {
      std::vector<HostTensor> inputs = host_inputs(), outputs;
      std::vector<std::string> zeros;
      for (auto& input : inputs) {
        zeros.emplace_back(input.bytes, '\0');
        input.data = zeros.back().data();
      }
      for (auto const& value : loaded->model.outputs) outputs.push_back({value.name, value.type, {}, nullptr, 0});
      loaded->cpu().run(inputs, outputs);
      for (auto const& output : outputs) {
        Dims dims{};
        dims.nbDims = static_cast<int32_t>(output.shape.size());
        std::copy(output.shape.begin(), output.shape.end(), dims.d);
        output_shapes[output.name] = dims;
      }
    }

    std::vector<HostTensor> host_inputs() const {
      std::vector<HostTensor> tensors;
      for (auto const& value : loaded->model.inputs) {
        Dims const dims = getTensorShape(value.name.c_str());
        std::vector<int64_t> const shape(dims.d, dims.d + dims.nbDims);
        tensors.push_back({value.name, value.type, shape, nullptr, bytes_of(value, shape)});
      }
      return tensors;
    }

    bool enqueue(cudaStream_t stream) {
      if (!has_memory) throw std::runtime_error("Error Code 3: API Usage Error (device memory is not set)");
      for (auto const& [name, tensor] : loaded->tensors)
        if (addresses[name] == nullptr)
          throw std::runtime_error("Error Code 3: API Usage Error (Tensor " + name + " has no address set)");
      if (fault("oom_enqueue")) throw std::runtime_error("Error Code 1: Cuda Runtime (out of memory)");
      if (fault("enqueue_fails"))
        throw std::runtime_error("Error Code 1: Cask (Cask convolution execution)");
      Job& job = prepared();
      for (auto const& input : job.inputs)
        cudaMemcpyAsync(input.data, addresses[input.name], input.bytes, cudaMemcpyDeviceToHost, stream);
      cudaLaunchHostFunc(stream, Job::run, &job);
      for (auto const& output : job.outputs)
        cudaMemcpyAsync(addresses[output.name], output.data, output.bytes, cudaMemcpyHostToDevice, stream);
      record("enqueue nodes=%zu", loaded->model.nodes.size());
      return true;
    }

    Job& prepared() {
      std::string key;
      for (auto const& [name, dims] : shapes) key += name + text_of(dims);
      auto& job = jobs[key];
      if (job) return *job;
      job = std::make_unique<Job>();
      job->loaded = loaded;
      job->inputs = host_inputs();
      for (auto const& value : loaded->model.outputs) {
        Dims const dims = getTensorShape(value.name.c_str());
        std::vector<int64_t> const shape(dims.d, dims.d + dims.nbDims);
        job->outputs.push_back({value.name, value.type, shape, nullptr, bytes_of(value, shape)});
      }
      for (auto* tensors : {&job->inputs, &job->outputs})
        for (auto& tensor : *tensors)
          if (cudaMallocHost(&tensor.data, tensor.bytes) != 0) throw std::runtime_error("cudaMallocHost failed");
      return *job;
    }
  } impl;

  Context(std::shared_ptr<Loaded> loaded, bool own_memory) {
    mImpl = &impl;
    impl.loaded = std::move(loaded);
    impl.has_memory = own_memory;
    if (own_memory) impl.scratch = std::make_unique<DeviceBlock>(impl.loaded->activation_bytes());
    if (own_memory && impl.scratch->address == nullptr) impl.has_memory = false;
  }
};

// The layers of an engine are the nodes of its graph. The first reads its inputs, the last writes its outputs.
struct Inspector final : IEngineInspector, Counted {
  struct Impl final : defaults::VEngineInspector {
    std::string text;
    char const* getEngineInformation(LayerInformationFormat) const noexcept override { return text.c_str(); }
  } impl;
  explicit Inspector(Loaded const& loaded) {
    mImpl = &impl;
    auto const& nodes = loaded.model.nodes;
    impl.text = "{\"Layers\": [";
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      std::string const name = "\"" + nodes[i].name + "\"", kind = "\"" + nodes[i].op + "\"";
      impl.text += i > 0 ? ",\n" : "";
      if (!loaded.plan.detailed) {
        impl.text += name;
        continue;
      }
      impl.text += "{\"Name\": " + name + ", \"LayerType\": " + kind;
      impl.text += ", \"Inputs\": " + list(i == 0 ? loaded.model.inputs : std::vector<Value>());
      impl.text += ", \"Outputs\": " + list(i + 1 == nodes.size() ? loaded.model.outputs : std::vector<Value>()) + "}";
    }
    impl.text += "], \"Bindings\": []}";
  }

 private:
  static std::string list(std::vector<Value> const& values) {
    std::string text = "[";
    for (auto const& value : values)
      text += std::string(text.size() > 1 ? ", " : "") + "{\"Name\": \"" + value.name + "\", \"Dimensions\": " +
              text_of(dims_of(value.shape)) + ", \"Format/Datatype\": \"" + word(data_type(value.type)) + "\"}";
    return text + "]";
  }
  static char const* word(DataType type) {
    switch (type) {
      case DataType::kHALF: return "Half";
      case DataType::kINT8: return "Int8";
      case DataType::kFP8: return "FP8";
      case DataType::kINT64: return "Int64";
      default: return "Float";
    }
  }
};

struct Engine final : ICudaEngine, Counted {
  struct Impl final : defaults::VCudaEngine {
    std::shared_ptr<Loaded> loaded;
    std::vector<std::string> names;
    int32_t getNbLayers() const noexcept override { return static_cast<int32_t>(loaded->model.nodes.size()); }
    IHostMemory* serialize() const noexcept override { return new Memory(loaded->plan.bytes()); }
    std::size_t getDeviceMemorySize() const noexcept override { return loaded->activation_bytes(); }
    int64_t getDeviceMemorySizeV2() const noexcept override {
      return static_cast<int64_t>(loaded->activation_bytes());
    }
    IEngineInspector* createEngineInspector() const noexcept override { return new Inspector(*loaded); }
    int32_t getNbOptimizationProfiles() const noexcept override { return 1; }
    int32_t getNbIOTensors() const noexcept override { return static_cast<int32_t>(names.size()); }
    char const* getIOTensorName(int32_t index) const noexcept override { return names[index].c_str(); }
    TensorIOMode getTensorIOMode(char const* name) const noexcept override {
      auto const found = loaded->tensors.find(name);
      if (found == loaded->tensors.end()) return TensorIOMode::kNONE;
      return found->second.second ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
    }
    Dims getTensorShape(char const* name) const noexcept override {
      return dims_of(loaded->tensors.at(name).first->shape);
    }
    DataType getTensorDataType(char const* name) const noexcept override {
      return data_type(loaded->tensors.at(name).first->type);
    }
    bool isShapeInferenceIO(char const*) const noexcept override { return false; }
    IExecutionContext* createExecutionContextWithoutDeviceMemory() noexcept override { return make(false); }
    IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept override {
      return make(strategy != ExecutionContextAllocationStrategy::kUSER_MANAGED);
    }

   private:
    IExecutionContext* make(bool own_memory) {
      record("context bytes=%zu own=%d", loaded->activation_bytes(), own_memory);
      auto made = fault("oom_context") ? nullptr : std::make_unique<Context>(loaded, own_memory);
      if (made && (!own_memory || made->impl.has_memory)) return made.release();
      say_error(*loaded->logger,
                "[executionContext.cpp::initializeExecutionContext::585] Error Code 2: OutOfMemory (Requested size was " +
                    std::to_string(loaded->activation_bytes()) + " bytes.)");
      return nullptr;
    }
  } impl;

  explicit Engine(std::shared_ptr<Loaded> loaded) {
    mImpl = &impl;
    impl.loaded = std::move(loaded);
    for (auto const& value : impl.loaded->model.inputs) impl.names.push_back(value.name);
    for (auto const& value : impl.loaded->model.outputs) impl.names.push_back(value.name);
  }
};

struct Runtime final : IRuntime, Counted {
  struct Impl final : defaults::VRuntime {
    ILogger* logger = nullptr;
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept override {
      try {
        auto loaded = std::make_shared<Loaded>();
        loaded->logger = logger;
        loaded->plan = Plan::read({static_cast<char const*>(blob), size});
        if (loaded->plan.version != version() || fault("reject_engine")) {
          say_error(*logger, "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
                             "stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current "
                             "Version: " + std::to_string(version()) + ", Serialized Engine Version: " +
                                 std::to_string(loaded->plan.version) + ")");
          return nullptr;
        }
        loaded->model = OnnxModel::read(loaded->plan.model);
        loaded->profile = profile_of(loaded->plan.profile);
        for (auto const& value : loaded->model.inputs) loaded->tensors[value.name] = {&value, true};
        for (auto const& value : loaded->model.outputs) loaded->tensors[value.name] = {&value, false};
        std::size_t const bytes = device_bytes(loaded->model);
        loaded->weights = std::make_unique<DeviceBlock>(bytes);
        if (bytes > 0 && loaded->weights->address == nullptr) {
          say_error(*logger, "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)");
          say(*logger, Severity::kWARNING,
              "Requested amount of GPU memory (" + std::to_string(bytes) + " bytes) could not be allocated. There may "
              "not be enough free memory for allocation to succeed.");
          return nullptr;
        }
        record("deserialize nodes=%zu weights=%zu", loaded->model.nodes.size(), bytes);
        return new Engine(std::move(loaded));
      } catch (std::exception const& error) {
        say_error(*logger, std::string("IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization "
                                       "assertion failed: ") + error.what() + ")");
        return nullptr;
      }
    }
  } impl;
  explicit Runtime(ILogger& logger) {
    mImpl = &impl;
    impl.logger = &logger;
  }
};

struct Registry final : IPluginRegistry {
  bool registerCreator(IPluginCreator&, AsciiChar const* const) noexcept override { return true; }
  IPluginCreator* const* getPluginCreatorList(int32_t* const count) const noexcept override {
    *count = 0;
    return nullptr;
  }
  IPluginCreator* getPluginCreator(AsciiChar const* const, AsciiChar const* const, AsciiChar const* const) noexcept
      override {
    return nullptr;
  }
  void setErrorRecorder(IErrorRecorder* const) noexcept override {}
  IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
  bool deregisterCreator(IPluginCreator const&) noexcept override { return true; }
  bool isParentSearchEnabled() const override { return false; }
  void setParentSearchEnabled(bool const) override {}
  PluginLibraryHandle loadLibrary(AsciiChar const*) noexcept override { return nullptr; }
  void deregisterLibrary(PluginLibraryHandle) noexcept override {}
  bool registerCreator(IPluginCreatorInterface&, AsciiChar const* const) noexcept override { return true; }
  IPluginCreatorInterface* const* getAllCreators(int32_t* const count) const noexcept override {
    *count = 0;
    return nullptr;
  }
  IPluginCreatorInterface* getCreator(
      AsciiChar const* const, AsciiChar const* const, AsciiChar const* const) noexcept override {
    return nullptr;
  }
  bool deregisterCreator(IPluginCreatorInterface const&) noexcept override { return true; }
  IPluginResource* acquirePluginResource(AsciiChar const*, IPluginResource*) noexcept override { return nullptr; }
  int32_t releasePluginResource(AsciiChar const*) noexcept override { return 0; }
  IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t* const count) noexcept override {
    *count = 0;
    return nullptr;
  }
};

}  // namespace

extern "C" {
IPluginRegistry* getPluginRegistry() noexcept {
  static Registry registry;
  return &registry;
}
int32_t getInferLibVersion() noexcept { return version(); }
int32_t getInferLibMajorVersion() noexcept { return version() / 10000; }
int32_t getInferLibMinorVersion() noexcept { return version() / 100 % 100; }
int32_t getInferLibPatchVersion() noexcept { return version() % 100; }
int32_t getInferLibBuildVersion() noexcept { return 0; }

void* createInferBuilder_INTERNAL(void* logger, int32_t) noexcept {
  report.used = true;
  record("builder visible=%s", stand_in::variable("CUDA_VISIBLE_DEVICES", "all").c_str());
  if (fault("builder_null")) {
    say_error(*static_cast<ILogger*>(logger), "Unable to load library: libnvinfer_builder_resource.so.10: cannot open "
                                              "shared object file: No such file or directory");
    return nullptr;
  }
  // ONNX Runtime takes this for the interface itself, so it must be that pointer.
  return static_cast<IBuilder*>(new Builder(*static_cast<ILogger*>(logger)));
}
void* createInferRuntime_INTERNAL(void* logger, int32_t) noexcept {
  report.used = true;
  return static_cast<IRuntime*>(new Runtime(*static_cast<ILogger*>(logger)));
}
void* createNvOnnxParser_INTERNAL(void* network, void* logger, int) noexcept {
  return static_cast<nvonnxparser::IParser*>(
      new Parser(static_cast<Network&>(*static_cast<INetworkDefinition*>(network)), *static_cast<ILogger*>(logger)));
}
void* createInferRefitter_INTERNAL(void*, void*, int32_t) noexcept { missing("createInferRefitter"); }
void* createNvOnnxParserRefitter_INTERNAL(void*, void*, int) noexcept { missing("createNvOnnxParserRefitter"); }

// What python/tensorrt.py builds on: the interface above, function by function.
void* stand_in_logger(void (*function)(int, char const*)) { return new FunctionLogger(function); }
void* stand_in_network(void* builder, unsigned flags) { return static_cast<IBuilder*>(builder)->createNetworkV2(flags); }
int stand_in_layers(void* network) { return static_cast<INetworkDefinition*>(network)->getNbLayers(); }
bool stand_in_parse(void* parser, char const* path) {
  return static_cast<nvonnxparser::IParser*>(parser)->parseFromFile(path, 0);
}
int stand_in_errors(void* parser) { return static_cast<nvonnxparser::IParser*>(parser)->getNbErrors(); }
char const* stand_in_error(void* parser, int index, int part) {
  auto const* const error = static_cast<nvonnxparser::IParser*>(parser)->getError(index);
  return part == 0 ? error->desc() : part == 1 ? error->nodeName() : error->nodeOperator();
}
void* stand_in_config(void* builder) { return static_cast<IBuilder*>(builder)->createBuilderConfig(); }
void stand_in_set_level(void* config, int level) {
  static_cast<IBuilderConfig*>(config)->setBuilderOptimizationLevel(level);
}
void stand_in_set_monitor(void* config, void (*start)(char const*, char const*, int), bool (*step)(char const*, int),
                          void (*finish)(char const*)) {
  auto* const monitor = new FunctionMonitor;
  monitor->start = start;
  monitor->step = step;
  monitor->finish = finish;
  static_cast<IBuilderConfig*>(config)->setProgressMonitor(monitor);
}
void stand_in_set_verbosity(void* config, int verbosity) {
  static_cast<IBuilderConfig*>(config)->setProfilingVerbosity(static_cast<ProfilingVerbosity>(verbosity));
}
int stand_in_layer_type(void* network, int index) {
  return static_cast<int>(static_cast<INetworkDefinition*>(network)->getLayer(index)->getType());
}
void stand_in_set_decomposable(void* network, int index, bool value) {
  static_cast<void>(static_cast<IAttentionOutputLayer*>(static_cast<INetworkDefinition*>(network)->getLayer(index))
                        ->getAttention()
                        ->setDecomposable(value));
}
void* stand_in_engine(void* logger, char const* bytes, std::size_t size) {
  return static_cast<IRuntime*>(createInferRuntime_INTERNAL(logger, 0))->deserializeCudaEngine(bytes, size);
}
long long stand_in_device_memory(void* engine) { return static_cast<ICudaEngine*>(engine)->getDeviceMemorySizeV2(); }
char const* stand_in_information(void* engine) {
  return static_cast<ICudaEngine*>(engine)->createEngineInspector()->getEngineInformation(
      LayerInformationFormat::kJSON);
}
void* stand_in_profile(void* builder) { return static_cast<IBuilder*>(builder)->createOptimizationProfile(); }
void stand_in_set_shape(void* profile, char const* input, int selector, int rank, long long const* sizes) {
  Dims dims{};
  dims.nbDims = rank;
  std::copy(sizes, sizes + rank, dims.d);
  static_cast<IOptimizationProfile*>(profile)->setDimensions(input, static_cast<OptProfileSelector>(selector), dims);
}
void stand_in_add_profile(void* config, void* profile) {
  static_cast<IBuilderConfig*>(config)->addOptimizationProfile(static_cast<IOptimizationProfile*>(profile));
}
void* stand_in_build(void* builder, void* network, void* config) {
  return static_cast<IBuilder*>(builder)->buildSerializedNetwork(
      *static_cast<INetworkDefinition*>(network), *static_cast<IBuilderConfig*>(config));
}
std::size_t stand_in_size(void* memory) { return static_cast<IHostMemory*>(memory)->size(); }
void const* stand_in_data(void* memory) { return static_cast<IHostMemory*>(memory)->data(); }
}
