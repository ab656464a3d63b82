// The CUDA driver and NVML, as far as latentsync-trt asks them about GPUs.
#include <algorithm>
#include <dlfcn.h>

#include "settings.h"

using stand_in::number;

namespace {
int gpu_count() { return static_cast<int>(number("STAND_IN_GPUS", 1)); }
std::size_t capacity() { return static_cast<std::size_t>(number("STAND_IN_GPU_BYTES", 8LL << 30)); }
void capability(int* major, int* minor) {
  std::sscanf(stand_in::variable("STAND_IN_CAPABILITY", "8.9").c_str(), "%d.%d", major, minor);
}
std::size_t used(int gpu) {
  auto* const ask = reinterpret_cast<std::size_t (*)(int)>(dlsym(RTLD_DEFAULT, "stand_in_used_bytes"));
  return ask == nullptr ? 0 : ask(gpu);
}
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = gpu_count();
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return 0;
}
int cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, length, "Stand-in GPU %d", device);
  return 0;
}
int cuDeviceGetPCIBusId(char* address, int length, int device) {
  std::snprintf(address, length, "0000:%02X:00.0", device + 1);
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = capacity();
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  int major = 8, minor = 9;
  capability(&major, &minor);
  *value = attribute == 75 ? major : attribute == 76 ? minor : 0;
  return 0;
}
int cuGetErrorName(int, char const** name) {
  *name = "CUDA_ERROR_STAND_IN";
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlShutdown() { return 0; }
char const* nvmlErrorString(int) { return "stand-in"; }
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "580.65.06");
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(char const* address, void** device) {
  unsigned domain = 0, bus = 0;
  std::sscanf(address, "%x:%x", &domain, &bus);
  *device = reinterpret_cast<void*>(static_cast<std::size_t>(bus));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* info) {
  int const gpu = static_cast<int>(reinterpret_cast<std::size_t>(device)) - 1;
  info[0] = static_cast<std::size_t>(number("STAND_IN_GPU_SHOWN", capacity()));
  info[2] = std::min<unsigned long long>(used(gpu), info[0]);
  info[1] = info[0] - info[2];
  return 0;
}
}
