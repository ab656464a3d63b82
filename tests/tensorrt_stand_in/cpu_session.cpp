#include "cpu_session.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

#include "settings.h"

namespace {

// The C API is a table of functions whose places never change: onnxruntime_c_api.h, struct OrtApi.
struct Status;
struct Api {
  void* functions[400];
};
struct ApiBase {
  Api const* (*get)(std::uint32_t);
  char const* (*version)();
};

enum Place {
  GET_ERROR_MESSAGE = 2,
  CREATE_ENV = 3,
  CREATE_SESSION_FROM_ARRAY = 8,
  RUN = 9,
  CREATE_SESSION_OPTIONS = 10,
  SET_LOG_SEVERITY = 22,
  SET_OPTIMIZATION_LEVEL = 23,
  SET_INTRA_OP_THREADS = 24,
  CREATE_TENSOR_WITH_DATA = 49,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  GET_TENSOR_TYPE_AND_SHAPE = 65,
  CREATE_CPU_MEMORY_INFO = 69,
  RELEASE_STATUS = 93,
  RELEASE_MEMORY_INFO = 94,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_TENSOR_INFO = 99,
  RELEASE_SESSION_OPTIONS = 100,
  ADD_CONFIG_ENTRY = 130,
};
constexpr std::uint32_t API_VERSION = 20;  // any from which all of the above are there
constexpr int ERRORS_ONLY = 3, ALL_OPTIMIZATIONS = 99, ARENA = 1, DEFAULT_MEMORY = 0;

Api const& api() {
  static Api const* const found = [] {
    std::string const path = stand_in::variable("STAND_IN_ONNXRUNTIME", "libonnxruntime.so.1");
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    auto* const base = reinterpret_cast<ApiBase const* (*)()>(dlsym(library, "OrtGetApiBase"))();
    return base->get(API_VERSION);
  }();
  return *found;
}

template <typename... Arguments>
void call(Place place, Arguments... arguments) {
  auto* const function = reinterpret_cast<Status* (*)(Arguments...)>(api().functions[place]);
  Status* const status = function(arguments...);
  if (status == nullptr) return;
  std::string const message =
      reinterpret_cast<char const* (*)(Status*)>(api().functions[GET_ERROR_MESSAGE])(status);
  reinterpret_cast<void (*)(Status*)>(api().functions[RELEASE_STATUS])(status);
  throw std::runtime_error(message);
}

void release(Place place, void* object) {
  if (object != nullptr) reinterpret_cast<void (*)(void*)>(api().functions[place])(object);
}

void* environment() {
  static void* const made = [] {
    void* env = nullptr;
    call(CREATE_ENV, ERRORS_ONLY, "stand-in", &env);
    return env;
  }();
  return made;
}

}  // namespace

struct CpuSession::Parts {
  void *session = nullptr, *memory = nullptr;
  std::mutex mutex;
};

CpuSession::CpuSession(std::string const& model, std::string const& weights_folder) : parts_(new Parts) {
  void* options = nullptr;
  call(CREATE_SESSION_OPTIONS, &options);
  call(SET_LOG_SEVERITY, options, ERRORS_ONLY);
  call(SET_OPTIMIZATION_LEVEL, options, ALL_OPTIMIZATIONS);
  call(SET_INTRA_OP_THREADS, options, static_cast<int>(stand_in::number("STAND_IN_THREADS", 2)));
  // As the CPU provider runs the same bundles.
  call(ADD_CONFIG_ENTRY, options, "session.disable_quant_qdq", "1");
  call(ADD_CONFIG_ENTRY, options, "session.intra_op.allow_spinning", "0");
  call(ADD_CONFIG_ENTRY, options, "session.model_external_initializers_file_folder_path", weights_folder.c_str());
  call(CREATE_SESSION_FROM_ARRAY, environment(), static_cast<void const*>(model.data()), model.size(), options,
       &parts_->session);
  release(RELEASE_SESSION_OPTIONS, options);
  call(CREATE_CPU_MEMORY_INFO, ARENA, DEFAULT_MEMORY, &parts_->memory);
}

CpuSession::~CpuSession() {
  release(RELEASE_SESSION, parts_->session);
  release(RELEASE_MEMORY_INFO, parts_->memory);
}

void CpuSession::run(std::vector<HostTensor> const& inputs, std::vector<HostTensor>& outputs) {
  std::lock_guard lock(parts_->mutex);
  std::vector<void*> given, made;
  std::vector<char const*> input_names, output_names;
  auto wrap = [&](HostTensor const& tensor) {
    void* value = nullptr;
    call(CREATE_TENSOR_WITH_DATA, parts_->memory, tensor.data, tensor.bytes,
         static_cast<std::int64_t const*>(tensor.shape.data()), tensor.shape.size(), tensor.type, &value);
    return value;
  };
  for (auto const& input : inputs) {
    input_names.push_back(input.name.c_str());
    given.push_back(wrap(input));
  }
  for (auto const& output : outputs) {
    output_names.push_back(output.name.c_str());
    made.push_back(output.data == nullptr ? nullptr : wrap(output));
  }
  std::string problem;
  try {
    call(RUN, parts_->session, static_cast<void*>(nullptr), static_cast<char const* const*>(input_names.data()),
         static_cast<void* const*>(given.data()), given.size(), static_cast<char const* const*>(output_names.data()),
         output_names.size(), made.data());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].data != nullptr) continue;
      void* info = nullptr;
      std::size_t rank = 0;
      call(GET_TENSOR_TYPE_AND_SHAPE, static_cast<void const*>(made[i]), &info);
      call(GET_DIMENSIONS_COUNT, static_cast<void const*>(info), &rank);
      outputs[i].shape.resize(rank);
      call(GET_DIMENSIONS, static_cast<void const*>(info), outputs[i].shape.data(), rank);
      release(RELEASE_TENSOR_INFO, info);
    }
  } catch (std::runtime_error const& error) {
    problem = error.what();
  }
  for (void* value : given) release(RELEASE_VALUE, value);
  for (void* value : made) release(RELEASE_VALUE, value);
  if (!problem.empty()) throw std::runtime_error(problem);
}
