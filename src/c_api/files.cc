#include <string>

#include "c_api/border.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/touchstone_c_io.h"

struct ts_tensor_file {
  touchstone::io::TensorFile file;
};

namespace {

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

template <class T>
const T& at(std::span<const T> values, std::int64_t index) {
  if (index < 0 || index >= std::ssize(values)) {
    throw touchstone::InvalidArgument("index: expected 0 to " +
                                      std::to_string(std::ssize(values) - 1) + ", got " +
                                      std::to_string(index));
  }
  return values[static_cast<std::size_t>(index)];
}

const touchstone::io::TensorInfo& tensor_at(const ts_tensor_file* file, std::int64_t index) {
  return at(checked(file, "file").file.tensors(), index);
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

ts_status ts_tensor_file_checksum(const ts_tensor_file* file, int64_t index, uint64_t* checksum) {
  return guarded([&] {
    checked(checksum, "checksum");
    *checksum = tensor_at(file, index).checksum();
  });
}

ts_status ts_tensor_file_summarize(const ts_tensor_file* file, ts_tensor_file_summary* summary) {
  return guarded([&] {
    const touchstone::io::TensorFile& opened = checked(file, "file").file;
    ts_tensor_file_summary full = TS_TENSOR_FILE_SUMMARY;
    full.container = name_of(opened.container()).data();
    full.files = std::ssize(opened.files());
    full.bytes = static_cast<std::int64_t>(opened.bytes());
    full.tensors = std::ssize(opened.tensors());
    full.metadata = std::ssize(opened.metadata());
    touchstone::c_api::fill(summary, "tensor_file_summarize", full);
  });
}

ts_status ts_tensor_file_metadata(const ts_tensor_file* file, int64_t index,
                                  ts_metadata_info* info) {
  return guarded([&] {
    const touchstone::io::MetadataValue& value = at(checked(file, "file").file.metadata(), index);
    ts_metadata_info full = TS_METADATA_INFO;
    full.key = value.key().c_str();
    full.type = name_of(value.type()).data();
    full.element_type = name_of(value.element_type()).data();
    full.size = static_cast<std::int64_t>(value.size());
    full.data = value.data().data();
    full.bytes = std::ssize(value.data());
    touchstone::c_api::fill(info, "tensor_file_metadata", full);
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

ts_status ts_model_file_describe(const char* path, ts_key_value line, void* user) {
  return guarded([&] {
    checked(path, "model_file_describe: path");
    if (line == nullptr) throw touchstone::InvalidArgument("model_file_describe: line: is NULL");
    const auto model = touchstone::io::ModelFile::open(path);
    for (const auto& [key, value] : touchstone::io::describe(model.description())) {
      line(user, key.c_str(), value.c_str());
    }
  });
}

ts_status ts_convert(const ts_convert_args* args) {
  return guarded([&] {
    const ts_convert_args known = touchstone::c_api::current(
        args, "convert", sizeof(ts_convert_args), ts_convert_args(TS_CONVERT_ARGS));
    checked(known.in, "in");
    checked(known.out, "out");
    if (known.max_shard_bytes < 0) {
      throw touchstone::InvalidArgument("convert: max_shard_bytes: expected at least 0, got " +
                                        std::to_string(known.max_shard_bytes));
    }
    touchstone::io::ConvertOptions options;
    if (known.type != nullptr)
      options.format = &touchstone::weight_format(std::string_view(known.type));
    if (known.project != nullptr)
      options.project = touchstone::parse_ternary_scale_rule(known.project);
    options.max_shard_bytes = static_cast<std::uint64_t>(known.max_shard_bytes);
    const auto report = touchstone::io::convert_model(known.in, known.out, options);
    if (known.note == nullptr) return;
    for (const std::string& note : report.notes)
      known.note(known.user, note.c_str(), std::ssize(note));
  });
}

ts_status ts_convert_model(const char* in, const char* out, const char* type) {
  ts_convert_args args = TS_CONVERT_ARGS;
  args.in = in;
  args.out = out;
  args.type = type;
  return ts_convert(&args);
}
