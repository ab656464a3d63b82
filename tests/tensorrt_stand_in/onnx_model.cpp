#include "onnx_model.h"

#include <functional>
#include <set>
#include <stdexcept>

namespace {

struct Field {
  int number = 0;
  std::uint64_t value = 0;  // of a number
  std::string_view bytes;   // of text, bytes or a message
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  bool next(Field& field) {
    if (left_.empty()) return false;
    std::uint64_t const key = varint();
    field = Field{static_cast<int>(key >> 3), 0, {}};
    switch (key & 7) {
      case 0: field.value = varint(); break;
      case 1: take(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: take(4); break;
      default: throw std::runtime_error("not a protobuf message");
    }
    return true;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      auto const byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw std::runtime_error("not a protobuf message");
  }
  std::string_view take(std::uint64_t count) {
    if (count > left_.size()) throw std::runtime_error("the message is cut short");
    auto const taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  std::string_view left_;
};

void each(std::string_view bytes, std::function<void(Field const&)> const& visit) {
  Reader reader(bytes);
  for (Field field; reader.next(field);) visit(field);
}

Value read_value(std::string_view bytes) {
  Value value;
  each(bytes, [&](Field const& info) {
    if (info.number == 1) value.name = info.bytes;
    if (info.number != 2) return;
    each(info.bytes, [&](Field const& type) {
      if (type.number != 1) return;  // tensor_type
      each(type.bytes, [&](Field const& tensor) {
        if (tensor.number == 1) value.type = static_cast<int>(tensor.value);
        if (tensor.number != 2) return;
        each(tensor.bytes, [&](Field const& shape) {
          if (shape.number != 1) return;
          Dimension dimension;
          each(shape.bytes, [&](Field const& part) {
            if (part.number == 1) dimension.size = static_cast<std::int64_t>(part.value);
            if (part.number == 2) dimension.name = part.bytes;
          });
          value.shape.push_back(dimension);
        });
      });
    });
  });
  return value;
}

void read_initializer(std::string_view bytes, OnnxModel& model, std::set<std::string>& names) {
  std::size_t elements = 1;
  int type = 0;
  bool external = false;
  each(bytes, [&](Field const& tensor) {
    if (tensor.number == 1) {  // dims, packed or not
      if (tensor.bytes.empty()) {
        elements *= tensor.value;
      } else {
        std::uint64_t value = 0;
        int shift = 0;
        for (unsigned char const byte : tensor.bytes) {
          value |= static_cast<std::uint64_t>(byte & 127) << shift;
          shift += 7;
          if (byte >= 128) continue;
          elements *= value;
          value = 0;
          shift = 0;
        }
      }
    }
    if (tensor.number == 2) type = static_cast<int>(tensor.value);
    if (tensor.number == 8) names.insert(std::string(tensor.bytes));
    if (tensor.number == 14) external = tensor.value == 1;
  });
  ++model.initializers;
  (external ? model.external_bytes : model.inline_bytes) += elements * element_bytes(type);
  if (external) ++model.external;
}

}  // namespace

OnnxModel OnnxModel::read(std::string_view bytes) {
  OnnxModel model;
  std::set<std::string> initialized;
  std::vector<Value> inputs;
  each(bytes, [&](Field const& field) {
    if (field.number != 7) return;  // graph
    each(field.bytes, [&](Field const& part) {
      if (part.number == 1) {
        Node node;
        each(part.bytes, [&](Field const& own) {
          if (own.number == 3) node.name = own.bytes;
          if (own.number == 4) node.op = own.bytes;
        });
        ++model.operators[node.op];
        model.nodes.push_back(std::move(node));
      }
      if (part.number == 5) read_initializer(part.bytes, model, initialized);
      if (part.number == 11) inputs.push_back(read_value(part.bytes));
      if (part.number == 12) model.outputs.push_back(read_value(part.bytes));
    });
  });
  for (auto& input : inputs)
    if (initialized.count(input.name) == 0) model.inputs.push_back(std::move(input));
  if (model.nodes.empty()) throw std::runtime_error("a model without nodes");
  return model;
}

std::size_t element_bytes(int type) {
  switch (type) {
    case 1: case 6: case 12: return 4;                                     // float, int32, uint32
    case 2: case 3: case 9: case 17: case 18: case 19: case 20: return 1;  // uint8, int8, bool, float8
    case 4: case 5: case 10: case 16: return 2;                            // uint16, int16, float16, bfloat16
    case 7: case 11: case 13: return 8;                                    // int64, double, uint64
    default: return 0;
  }
}
