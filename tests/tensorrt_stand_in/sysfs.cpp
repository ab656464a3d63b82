// Preloaded: /sys/class/drm is the folder in $STAND_IN_DRM. ONNX Runtime looks there for GPUs.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr char PLACE[] = "/sys/class/drm";

std::string moved(char const* path) {
  char const* folder = std::getenv("STAND_IN_DRM");
  std::size_t const length = sizeof PLACE - 1;
  if (folder == nullptr || path == nullptr || std::strncmp(path, PLACE, length) != 0) return path == nullptr ? "" : path;
  return std::string(folder) + (path + length);
}

template <typename Function>
Function* usual(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int mode_of(va_list arguments) { return va_arg(arguments, int); }

}  // namespace

#define OPEN(name)                                                                \
  int name(char const* path, int flags, ...) {                                    \
    va_list arguments;                                                            \
    va_start(arguments, flags);                                                   \
    int const mode = mode_of(arguments);                                          \
    va_end(arguments);                                                            \
    return usual<int(char const*, int, ...)>(#name)(moved(path).c_str(), flags, mode); \
  }
#define FOPEN(name)                                                                    \
  std::FILE* name(char const* path, char const* mode) {                                \
    return usual<std::FILE*(char const*, char const*)>(#name)(moved(path).c_str(), mode); \
  }
#define STAT(name)                                                                  \
  int name(char const* path, struct stat* found) noexcept {                         \
    return usual<int(char const*, struct stat*)>(#name)(moved(path).c_str(), found); \
  }
// What programs that were linked with glibc before 2.33 call instead.
#define VERSIONED_STAT(name)                                                                       \
  int name(int version, char const* path, struct stat* found) {                                     \
    return usual<int(int, char const*, struct stat*)>(#name)(version, moved(path).c_str(), found); \
  }

extern "C" {
OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)
STAT(stat)
STAT(lstat)
VERSIONED_STAT(__xstat)
VERSIONED_STAT(__lxstat)
int openat(int folder, char const* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int const mode = mode_of(arguments);
  va_end(arguments);
  return usual<int(int, char const*, int, ...)>("openat")(folder, moved(path).c_str(), flags, mode);
}
ssize_t readlink(char const* path, char* target, std::size_t size) noexcept {
  return usual<ssize_t(char const*, char*, std::size_t)>("readlink")(moved(path).c_str(), target, size);
}
DIR* opendir(char const* path) { return usual<DIR*(char const*)>("opendir")(moved(path).c_str()); }
char* realpath(char const* path, char* resolved) noexcept {
  auto* const function = reinterpret_cast<char* (*)(char const*, char*)>(dlvsym(RTLD_NEXT, "realpath", "GLIBC_2.3"));
  return function(moved(path).c_str(), resolved);
}
}
