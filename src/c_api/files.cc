#include "c_api/border.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/touchstone_c_io.h"

struct ts_tensor_file {
  touchstone::io::TensorFile file;
};

namespace {

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

const touchstone::io::TensorInfo& tensor_at(const ts_tensor_file* file, std::int64_t index) {
  const auto tensors = checked(file, "file").file.tensors();
  if (index < 0 || index >= std::ssize(tensors)) {
    throw touchstone::InvalidArgument("index: expected 0 to " +
                                      std::to_string(std::ssize(tensors) - 1) + ", got " +
                                      std::to_string(index));
  }
  return tensors[static_cast<std::size_t>(index)];
}

}  // namespace

ts_status ts_tensor_file_open(const char* path, ts_tensor_file** file) {
  return guarded([&] {
    checked(path, "path");
    checked(file, "file");
    *file = new ts_tensor_file{touchstone::io::TensorFile::open(path)};
  });
}

void ts_tensor_file_close(ts_tensor_file* file) { delete file; }

int64_t ts_tensor_file_count(const ts_tensor_file* file) {
  return file == nullptr ? 0 : std::ssize(file->file.tensors());
}

ts_status ts_tensor_file_info(const ts_tensor_file* file, int64_t index, ts_tensor_info* info) {
  return guarded([&] {
    const touchstone::io::TensorInfo& tensor = tensor_at(file, index);
    ts_tensor_info full = TS_TENSOR_INFO;
    full.name = tensor.name.c_str();
    full.type = tensor.type.c_str();
    full.data = tensor.data.data();
    full.bytes = std::ssize(tensor.data);
    full.elements = tensor.elements();
    full.rank = static_cast<std::int32_t>(tensor.shape.size());
    full.is_weights = tensor.format != nullptr ? 1 : 0;
    std::copy(tensor.shape.begin(), tensor.shape.end(), full.shape);
    touchstone::c_api::fill(info, "tensor_file_info", full);
  });
}

ts_status ts_tensor_file_find(const ts_tensor_file* file, const char* name, int64_t* index) {
  return guarded([&] {
    checked(index, "index");
    const touchstone::io::TensorFile& opened = checked(file, "file").file;
    checked(name, "name");
    *index = &opened.tensor(name) - opened.tensors().data();
  });
}

ts_status ts_tensor_file_decode(const ts_tensor_file* file, int64_t index, float* values,
                                int64_t count) {
  return guarded([&] {
    const touchstone::io::TensorInfo& tensor = tensor_at(file, index);
    if (tensor.format == nullptr) {
      throw touchstone::Unsupported("tensor_file_decode: " + tensor.type + " holds no weights");
    }
    if (count != tensor.elements()) {
      throw touchstone::InvalidArgument("count: expected " + std::to_string(tensor.elements()) +
                                        ", got " + std::to_string(count));
    }
    touchstone::decode_weights(*tensor.format, tensor.data,
                               touchstone::c_api::list(values, count, "values"));
  });
}

ts_status ts_tensor_file_metadata_string(const ts_tensor_file* file, const char* key,
                                         const char** text, int64_t* length) {
  return guarded([&] {
    checked(text, "text");
    checked(length, "length");
    checked(key, "key");
    const touchstone::io::MetadataValue* const value =
        checked(file, "file").file.find_metadata(key);
    *text = value == nullptr ? nullptr : value->as_string().data();
    *length = value == nullptr ? 0 : std::ssize(value->as_string());
  });
}

ts_status ts_convert_model(const char* in, const char* out, const char* type) {
  return guarded([&] {
    checked(in, "in");
    checked(out, "out");
    touchstone::io::ConvertOptions options;
    if (type != nullptr) options.format = &touchstone::weight_format(std::string_view(type));
    touchstone::io::convert_model(in, out, options);
  });
}
