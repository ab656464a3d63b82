// What the stand-in reads of an ONNX model: https://onnx.ai/onnx/api/classes.html has the fields, and
// https://protobuf.dev/programming-guides/encoding/ how they lie in a file.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

struct Dimension {
  std::int64_t size = -1;  // -1: variable
  std::string name;        // of a variable one; may be empty
};

struct Value {
  std::string name;
  int type = 0;  // onnx.TensorProto.DataType
  std::vector<Dimension> shape;
};

struct Node {
  std::string name, op;
};

struct OnnxModel {
  std::vector<Node> nodes;
  std::vector<Value> inputs, outputs;  // inputs without initializers
  std::size_t initializers = 0, external = 0, inline_bytes = 0, external_bytes = 0;
  std::map<std::string, std::size_t> operators;  // how many nodes of each

  // Throws std::runtime_error where the bytes are no model.
  static OnnxModel read(std::string_view bytes);
};

// Bytes of one element of an onnx.TensorProto.DataType; 0 for one that is not known.
std::size_t element_bytes(int type);
