// What tests set and read: environment variables, and one log that every library of the stand-in appends to.
//
//   STAND_IN_LOG             file to append to; nothing is written without it
//   STAND_IN_FAULTS          comma-separated names, some with "=value"; see README.md
//   STAND_IN_GPUS            number of GPUs, default 1
//   STAND_IN_GPU_BYTES       memory of each GPU, default 8 GiB
//   STAND_IN_GPU_SHOWN       what NVML says it is, default the same
//   STAND_IN_CAPABILITY      compute capability, default "8.9"
//   STAND_IN_VERSION         TensorRT's version number, default 101401
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace stand_in {

inline std::string variable(char const* name, char const* otherwise) {
  char const* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

inline long long number(char const* name, long long otherwise) {
  return std::atoll(variable(name, std::to_string(otherwise).c_str()).c_str());
}

// Whether a fault is asked for; its value, empty if it has none, goes to `value`.
inline bool fault(char const* name, std::string* value = nullptr) {
  std::string const all = variable("STAND_IN_FAULTS", "");
  std::size_t start = 0;
  while (start <= all.size()) {
    std::size_t const end = std::min(all.find(',', start), all.size());
    std::string const entry = all.substr(start, end - start);
    std::size_t const equals = entry.find('=');
    if (entry.substr(0, equals) == name) {
      if (value != nullptr) *value = equals == std::string::npos ? "" : entry.substr(equals + 1);
      return true;
    }
    start = end + 1;
  }
  return false;
}

// Appends a line with the number of the process. One write each, so that lines of several processes stay whole.
inline void record(char const* format, ...) {
  std::string const path = variable("STAND_IN_LOG", "");
  if (path.empty()) return;
  char line[4096];
  int length = std::snprintf(line, sizeof line, "%d ", static_cast<int>(getpid()));
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(line + length, sizeof line - length - 1, format, arguments);
  va_end(arguments);
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  int const file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  [[maybe_unused]] auto written = write(file, line, length);
  close(file);
}

}  // namespace stand_in
