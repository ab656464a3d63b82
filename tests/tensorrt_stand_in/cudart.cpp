// A CUDA runtime whose device memory is host memory. Streams do their work at once; while one is captured, its work is
// recorded with the addresses it was given, and done when the graph is launched, as CUDA does. Kernels do nothing.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "settings.h"

using stand_in::number;
using stand_in::record;

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101;
constexpr std::size_t ALIGNMENT = 256;
constexpr int MOST_GPUS = 8;

struct Memory {
  std::mutex mutex;
  std::unordered_map<void*, std::pair<std::size_t, int>> blocks;  // address → bytes, GPU
  std::size_t used[MOST_GPUS] = {}, peak[MOST_GPUS] = {};
};

// Never destroyed: what is loaded after this library may free memory at exit after it.
Memory& memory() {
  static Memory* const made = new Memory;
  return *made;
}

thread_local int current_device = 0;

std::size_t capacity() { return static_cast<std::size_t>(number("STAND_IN_GPU_BYTES", 8LL << 30)); }
int gpu_count() { return static_cast<int>(number("STAND_IN_GPUS", 1)); }

struct Stream {
  bool capturing = false;
  std::vector<std::function<void()>> recorded;
};

// What the null stream does cannot be captured, in CUDA either.
void submit(void* stream, std::function<void()> work) {
  auto* const own = static_cast<Stream*>(stream);
  if (own != nullptr && own->capturing) {
    own->recorded.push_back(std::move(work));
  } else {
    work();
  }
}

struct Graph {
  std::vector<std::function<void()>> work;
};

struct Report {
  ~Report() {
    for (int gpu = 0; gpu < gpu_count(); ++gpu)
      if (memory().peak[gpu] > 0)
        record("memory gpu=%d left=%zu peak=%zu", gpu, memory().used[gpu], memory().peak[gpu]);
  }
} report;

}  // namespace

extern "C" {

std::size_t stand_in_used_bytes(int gpu) { return memory().used[gpu]; }

int cudaGetDeviceCount(int* count) {
  *count = gpu_count();
  return SUCCESS;
}
int cudaGetDevice(int* device) {
  *device = current_device;
  return SUCCESS;
}
int cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_count()) return INVALID_DEVICE;
  current_device = device;
  return SUCCESS;
}
int cudaDeviceGetByPCIBusId(int* device, char const* address) {
  unsigned domain = 0, bus = 0;
  std::sscanf(address, "%x:%x", &domain, &bus);
  *device = static_cast<int>(bus) - 1;  // as driver.cpp counts
  return *device >= 0 && *device < gpu_count() ? SUCCESS : INVALID_DEVICE;
}
int cudaGetDeviceProperties(char* properties, int device) {
  // Offsets of cudaDeviceProp in CUDA 13.
  std::memset(properties, 0, 1008);
  std::snprintf(properties, 256, "Stand-in GPU %d", device);
  auto put = [&](std::size_t offset, auto value) { std::memcpy(properties + offset, &value, sizeof value); };
  int major = 8, minor = 9;
  std::sscanf(stand_in::variable("STAND_IN_CAPABILITY", "8.9").c_str(), "%d.%d", &major, &minor);
  put(288, capacity());                       // totalGlobalMem
  put(296, std::size_t{49152});               // sharedMemPerBlock
  put(304, 65536);                            // regsPerBlock
  put(308, 32);                               // warpSize
  put(320, 1024);                             // maxThreadsPerBlock
  for (int axis = 0; axis < 3; ++axis) put(324 + 4 * axis, 1024);
  for (int axis = 0; axis < 3; ++axis) put(336 + 4 * axis, 65535);
  put(360, major);
  put(364, minor);
  put(384, 128);                              // multiProcessorCount
  return SUCCESS;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  int major = 8, minor = 9;
  std::sscanf(stand_in::variable("STAND_IN_CAPABILITY", "8.9").c_str(), "%d.%d", &major, &minor);
  *value = attribute == 75 ? major : attribute == 76 ? minor : attribute == 16 ? 128 : 1024;
  return SUCCESS;
}
int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return SUCCESS;
}
int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return SUCCESS;
}

int cudaMalloc(void** pointer, std::size_t bytes) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  std::size_t& used = all.used[current_device];
  if (used + bytes > capacity()) {
    *pointer = nullptr;
    record("cudaMalloc bytes=%zu gpu=%d refused: %zu used", bytes, current_device, used);
    return OUT_OF_MEMORY;
  }
  *pointer = std::aligned_alloc(ALIGNMENT, (std::max<std::size_t>(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  all.blocks[*pointer] = {bytes, current_device};
  used += bytes;
  all.peak[current_device] = std::max(all.peak[current_device], used);
  return SUCCESS;
}
int cudaFree(void* pointer) {
  if (pointer == nullptr) return SUCCESS;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  auto const found = all.blocks.find(pointer);
  if (found == all.blocks.end()) {
    record("cudaFree of memory that was not allocated");
    return INVALID_VALUE;
  }
  all.used[found->second.second] -= found->second.first;
  all.blocks.erase(found);
  std::free(pointer);
  return SUCCESS;
}
int cudaMallocHost(void** pointer, std::size_t bytes) {
  *pointer = std::aligned_alloc(ALIGNMENT, (std::max<std::size_t>(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  return *pointer == nullptr ? OUT_OF_MEMORY : SUCCESS;
}
int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) { return cudaMallocHost(pointer, bytes); }
int cudaFreeHost(void* pointer) {
  std::free(pointer);
  return SUCCESS;
}
int cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *total_bytes = capacity();
  *free_bytes = capacity() - memory().used[current_device];
  return SUCCESS;
}
int cudaMemcpy(void* target, void const* source, std::size_t bytes, int) {
  std::memmove(target, source, bytes);
  return SUCCESS;
}
int cudaMemcpyAsync(void* target, void const* source, std::size_t bytes, int, void* stream) {
  submit(stream, [=] { std::memmove(target, source, bytes); });
  return SUCCESS;
}
int cudaMemset(void* target, int value, std::size_t bytes) {
  std::memset(target, value, bytes);
  return SUCCESS;
}
int cudaMemsetAsync(void* target, int value, std::size_t bytes, void* stream) {
  submit(stream, [=] { std::memset(target, value, bytes); });
  return SUCCESS;
}
int cudaPointerGetAttributes(char* attributes, void* pointer) {
  constexpr int DEVICE = 2;
  std::memset(attributes, 0, 24);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  auto const found = all.blocks.find(pointer);
  if (found == all.blocks.end()) return SUCCESS;  // not of CUDA, or inside a block
  std::memcpy(attributes, &DEVICE, sizeof DEVICE);
  std::memcpy(attributes + 4, &found->second.second, sizeof(int));
  std::memcpy(attributes + 8, &pointer, sizeof pointer);
  return SUCCESS;
}
int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return SUCCESS;
}
int cudaMemPoolCreate(void** pool, void*) {
  *pool = std::malloc(8);
  return SUCCESS;
}
int cudaMemPoolDestroy(void* pool) {
  std::free(pool);
  return SUCCESS;
}
int cudaMemPoolGetAttribute(void*, int, std::size_t* value) {
  *value = 0;
  return SUCCESS;
}
int cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, void*, void*) { return cudaMalloc(pointer, bytes); }
int cudaFreeAsync(void* pointer, void*) { return cudaFree(pointer); }

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  *stream = new Stream;
  return SUCCESS;
}
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamDestroy(void* stream) {
  delete static_cast<Stream*>(stream);
  return SUCCESS;
}
int cudaStreamSynchronize(void* stream) {
  auto* const own = static_cast<Stream*>(stream);
  if (own != nullptr && own->capturing) {
    record("cudaStreamSynchronize during capture");
    return 900;  // cudaErrorStreamCaptureUnsupported
  }
  return SUCCESS;
}
int cudaStreamIsCapturing(void* stream, int* status) {
  *status = stream != nullptr && static_cast<Stream*>(stream)->capturing ? 1 : 0;
  return SUCCESS;
}
int cudaStreamBeginCapture(void* stream, int) {
  static_cast<Stream*>(stream)->capturing = true;
  record("capture begin");
  return SUCCESS;
}
int cudaStreamEndCapture(void* stream, void** graph) {
  auto* const own = static_cast<Stream*>(stream);
  own->capturing = false;
  record("capture end operations=%zu", own->recorded.size());
  *graph = new Graph{std::move(own->recorded)};
  own->recorded.clear();
  return SUCCESS;
}
int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return SUCCESS;
}
int cudaGraphLaunch(void* executable, void*) {
  record("graph launch");
  for (auto const& work : static_cast<Graph*>(executable)->work) work();
  return SUCCESS;
}
int cudaGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return SUCCESS;
}
int cudaGraphExecDestroy(void* executable) { return cudaGraphDestroy(executable); }
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  submit(stream, [=] { function(argument); });
  return SUCCESS;
}

int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = std::malloc(8);
  return SUCCESS;
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void* event) {
  std::free(event);
  return SUCCESS;
}
int cudaEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0;
  return SUCCESS;
}

char const* cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "stand-in error"; }
char const* cudaGetErrorName(int error) {
  return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorStandIn";
}
void** __cudaRegisterFatBinary(void*) {
  static long handle;
  return reinterpret_cast<void**>(&handle);
}

}  // extern "C"
