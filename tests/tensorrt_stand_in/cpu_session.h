// A graph on ONNX Runtime's CPU provider, through its C API.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct HostTensor {
  std::string name;
  int type = 0;  // onnx.TensorProto.DataType, which the C API numbers alike
  std::vector<std::int64_t> shape;
  void* data = nullptr;  // of an output: nullptr lets the session allocate it
  std::size_t bytes = 0;
};

class CpuSession {
 public:
  // Throws std::runtime_error with ONNX Runtime's words where the graph does not open.
  CpuSession(std::string const& model, std::string const& weights_folder);
  ~CpuSession();

  // Runs into the outputs' memory; shapes of outputs without memory are filled in instead. Throws std::runtime_error.
  void run(std::vector<HostTensor> const& inputs, std::vector<HostTensor>& outputs);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
