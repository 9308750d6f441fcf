// The Python child: the calls of the judge, made on a file of Python functions.
//
//   python3 -I -B -c "import sys; sys.path.append(sys.argv[1]); import touchstone_child"
//       FOLDER FUNCTIONS CONTENDER.py... [adapter:ADAPTER.py]
//
// This library is the module that is imported there, and its import never ends. All of the harness
// is in here: no frame, module or object of the interpreter leads to it, so that contender code,
// which shares the process, has nothing to patch. FUNCTIONS is the contract, functions with ';'
// between them: name in Python, what it returns, 1 where it is optional, then each argument as
// kind:name, all with ',' between them. "output?" is one that may be None.
//
// Inputs are read-only arrays over shared memory. What a function returns is copied to the judge's
// memory inside the timed window, so that a lazy result is paid for.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "heap_watch.h"
#include "judge_link.h"
#include "python_api.h"

namespace touchstone::judge::child {
namespace {

using namespace protocol;

struct Argument {
  std::string kind;
  std::string name;
  bool may_be_omitted = false;
};
struct Function {
  std::string name;
  std::string returns;
  bool optional = false;
  std::vector<Argument> arguments;
  Ref target;

  bool has_state() const {
    for (const Argument& a : arguments) {
      if (a.kind == "state") return true;
    }
    return false;
  }
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<Function> read_functions(const std::string& text) {
  std::vector<Function> functions;
  for (const std::string& line : split(text, ';')) {
    const std::vector<std::string> words = split(line, ',');
    if (words.size() < 3) continue;
    Function function;
    function.name = words[0];
    function.returns = words[1];
    function.optional = words[2] == "1";
    for (size_t i = 3; i < words.size(); ++i) {
      const size_t colon = words[i].find(':');
      Argument argument{words[i].substr(0, colon), words[i].substr(colon + 1)};
      argument.may_be_omitted = argument.kind.ends_with('?');
      if (argument.may_be_omitted) argument.kind.pop_back();
      function.arguments.push_back(argument);
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

Ref attribute(PyObject* of, const char* name) { return Ref(PyObject_GetAttrString(of, name)); }

Ref text_of(const std::string& text) { return Ref(PyUnicode_FromString(text.c_str())); }

Ref number(int64_t value) { return Ref(PyLong_FromLongLong(value)); }

Ref tuple(std::vector<Ref> items) {
  Ref result(PyTuple_New(static_cast<ptrdiff_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    PyTuple_SetItem(result.get(), static_cast<ptrdiff_t>(i), items[i].release());
  }
  return result;
}

template <class... Items>
Ref call(PyObject* what, Items... items) {
  std::vector<Ref> all;
  (all.push_back(std::move(items)), ...);
  const Ref arguments = tuple(std::move(all));
  return Ref(PyObject_CallObject(what, arguments.get()));
}

std::string utf8(PyObject* text) {
  ptrdiff_t size = 0;
  const char* bytes = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes == nullptr) PyErr_Clear();
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

bool is_none(PyObject* object) { return object == &_Py_NoneStruct; }

// A raised exception, taken out of the interpreter.
struct Raised {
  Ref type;
  Ref value;
  std::string text;  // "ValueError: no such thing"

  static Raised take() {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const Ref released(trace);
    Raised raised{Ref(type), Ref(value), {}};
    if (type == nullptr) return raised;
    raised.text = utf8(attribute(type, "__name__").get());
    const Ref words(value == nullptr ? nullptr : PyObject_Str(value));
    raised.text += ": " + utf8(words.get());
    PyErr_Clear();
    return raised;
  }
  bool is(PyObject* kind) const {
    return type && PyErr_GivenExceptionMatches(type.get(), kind) != 0;
  }
};

// The functions of NumPy that the harness calls: its C functions, taken before the contender is
// there to replace them.
struct NumPy {
  Ref array;
  Ref frombuffer;
  Ref zeros;
  Ref copyto;
  Ref ndarray;
  std::vector<Ref> dtypes;

  bool load() {
    Ref core(PyImport_ImportModule("numpy._core._multiarray_umath"));
    if (!core) {
      PyErr_Clear();
      core = Ref(PyImport_ImportModule("numpy.core._multiarray_umath"));
    }
    const Ref numpy(PyImport_ImportModule("numpy"));
    if (!core || !numpy) return false;
    array = attribute(core.get(), "array");
    frombuffer = attribute(core.get(), "frombuffer");
    zeros = attribute(core.get(), "zeros");
    copyto = attribute(core.get(), "copyto");
    ndarray = attribute(core.get(), "ndarray");
    const Ref dtype = attribute(core.get(), "dtype");
    if (!array || !frombuffer || !zeros || !copyto || !ndarray || !dtype) return false;
    // In the order of touchstone::DType; bfloat16 travels as its bits.
    for (const char* name : {"f8", "f4", "u2", "f2", "i8", "i4", "i1", "u1"}) {
      dtypes.push_back(call(dtype.get(), text_of(name)));
    }
    return true;
  }
};

// Tells the heap that counts whose code runs: an adapter's, or the contender's. What either calls in a
// library is its own. Only where memory is measured, because it costs time.
class AdapterWatch {
 public:
  static void start(JudgeLink& link, const std::string& adapter) {
    if (touchstone_heap_adapter == nullptr) return;
    adapter_ = new std::string(adapter);
    callers_ = new std::vector<bool>();
    link.watch_adapter(
        {touchstone_heap_adapter_held, touchstone_heap_adapter_then, touchstone_heap_forget});
    PyEval_SetProfile(&on_event, nullptr);
  }

 private:
  static int on_event(PyObject* /*own*/, PyObject* frame, int what, PyObject* /*argument*/) {
    constexpr int kCall = 0;
    constexpr int kReturn = 3;
    if (what == kCall) {
      callers_->push_back(running_);
      const Ref code(PyFrame_GetCode(frame));
      const std::string file = utf8(attribute(code.get(), "co_filename").get());
      const std::string folder = adapter_->substr(0, adapter_->rfind('/') + 1);
      if (file == *adapter_) {
        set(true);
      } else if (file.starts_with(folder)) {
        set(false);
      }
    } else if (what == kReturn && !callers_->empty()) {
      set(callers_->back());
      callers_->pop_back();
    }
    return 0;
  }
  static void set(bool running) {
    running_ = running;
    touchstone_heap_adapter(running);
  }

  static inline std::string* adapter_ = nullptr;
  static inline std::vector<bool>* callers_ = nullptr;  // whether each was the adapter
  static inline bool running_ = false;
};

class PythonServer {
 public:
  PythonServer(JudgeLink& link, NumPy numpy, std::vector<Function> functions)
      : link_(link), numpy_(std::move(numpy)), functions_(std::move(functions)) {}

  // Loads the files, an adapter last; false with an exception set.
  bool load(const std::vector<std::string>& files) {
    std::vector<Ref> modules;
    for (size_t i = 0; i < files.size(); ++i) {
      std::ifstream file(files[i], std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      constexpr int kFileInput = 257;
      const Ref code(Py_CompileString(text.c_str(), files[i].c_str(), kFileInput));
      if (!code) return false;
      const std::string name = "contender" + std::to_string(i);
      modules.emplace_back(PyImport_ExecCodeModuleEx(name.c_str(), code.get(), files[i].c_str()));
      if (!modules.back()) return false;
    }
    for (Function& function : functions_) {
      for (size_t i = modules.size(); i-- > 0 && !function.target;) {
        if (PyObject_HasAttrString(modules[i].get(), function.name.c_str()) != 0) {
          function.target = attribute(modules[i].get(), function.name.c_str());
        }
      }
      if (function.target || function.optional) continue;
      PyErr_Format(PyExc_TypeError, "no function %s", function.name.c_str());
      return false;
    }
    return true;
  }

  [[noreturn]] void run() {
    link_.note(kReturned, "");
    link_.acknowledge();
    while (true) {
      const uint32_t command = link_.wait();
      switch (command) {
        case kMap:
          if (!link_.map()) link_.note(kStartFailed, "no room to map the buffers");
          link_.acknowledge();
          break;
        case kMapAndCall:
          if (link_.map()) {
            serve_call();
          } else {
            link_.note(kStartFailed, "no room to map the buffers");
            link_.acknowledge();
            link_.finish();
          }
          break;
        case kCall:
          serve_call();
          break;
        case kReset:
          states_.clear();
          link_.reset();
          link_.acknowledge();
          break;
        case kFetch:
          link_.control().state_bytes = bytes_of(states_[link_.control().state].get(), 0);
          link_.acknowledge();
          break;
        default:
          _exit(0);
      }
    }
  }

 private:
  // Buffer i of the current call, in place.
  Ref array(uint32_t i, bool writable) {
    constexpr int kWritable = 0x200;
    const Buffer& b = link_.control().buffers[i];
    std::vector<Ref> extents;
    for (uint32_t k = 0; k < b.rank; ++k) extents.push_back(number(b.shape[k]));
    Ref shape = tuple(std::move(extents));
    const Ref& dtype = numpy_.dtypes.at(b.dtype);
    Ref result;
    if (b.data_bytes == 0) {
      result = call(numpy_.zeros.get(), std::move(shape), Ref::borrowed(dtype.get()));
    } else {
      Ref memory(PyMemoryView_FromMemory(static_cast<char*>(link_.data(i)),
                                         static_cast<ptrdiff_t>(b.data_bytes), kWritable));
      const Ref flat = call(numpy_.frombuffer.get(), std::move(memory), Ref::borrowed(dtype.get()));
      const Ref reshape = attribute(flat.get(), "reshape");
      result = call(reshape.get(), std::move(shape));
    }
    if (!writable) call(attribute(result.get(), "setflags").get(), number(0));
    return result;
  }

  // What the function is called with. Outputs are returned, and so is a state that is made.
  Ref arguments(const Function& function) {
    const Control& c = link_.control();
    std::vector<Ref> values;
    uint32_t scalar = 0;
    uint32_t buffer = 0;
    for (const Argument& argument : function.arguments) {
      if (argument.kind == "i64") {
        values.push_back(number(c.scalars[scalar++]));
      } else if (argument.kind == "f32") {
        double value = 0.0;
        memcpy(&value, &c.scalars[scalar++], sizeof value);
        values.emplace_back(PyFloat_FromDouble(value));
      } else if (argument.kind == "input") {
        values.push_back(array(buffer++, false));
      } else if (argument.kind == "output") {
        ++buffer;
      } else if (argument.kind != "state" || c.makes_state == 0) {
        PyObject* known = states_[c.state].get();
        values.push_back(Ref::borrowed(known == nullptr ? &_Py_NoneStruct : known));
      }
    }
    return tuple(std::move(values));
  }

  // Copies one returned value to where the judge looks. False with an exception set.
  bool store_output(const Argument& argument, uint32_t buffer, Ref value) {
    if (PyObject_IsInstance(value.get(), numpy_.ndarray.get()) != 1) {
      value = call(numpy_.array.get(), std::move(value));
      if (!value) return false;
    }
    const Ref output = array(buffer, true);
    const Ref shape = attribute(value.get(), "shape");
    const Ref wanted = attribute(output.get(), "shape");
    if (!shape || !wanted) return false;
    const std::string got = utf8(Ref(PyObject_Str(shape.get())).get());
    const std::string expected = utf8(Ref(PyObject_Str(wanted.get())).get());
    if (got != expected) {
      PyErr_Format(PyExc_ValueError, "%s: expected shape %s, got %s", argument.name.c_str(),
                   expected.c_str(), got.c_str());
      return false;
    }
    return bool(call(numpy_.copyto.get(), Ref::borrowed(output.get()), std::move(value)));
  }

  // What a function returned, to where the judge looks; `returned` as a C function would say it.
  bool store(const Function& function, Ref result, int64_t& returned) {
    const Control& c = link_.control();
    const bool makes_state = c.makes_state != 0 && function.has_state();
    std::vector<std::pair<const Argument*, uint32_t>> outputs;
    uint32_t buffer = 0;
    for (const Argument& a : function.arguments) {
      if (a.kind == "output") outputs.emplace_back(&a, buffer);
      if (a.kind == "output" || a.kind == "input") ++buffer;
    }
    if (function.returns == "handle") {
      returned = is_none(result.get()) ? 1 : 0;
      states_[c.state] = std::move(result);
      return true;
    }
    const bool plain = function.returns == "nothing" || (outputs.empty() && !makes_state);
    if (function.returns == "size" || plain) {
      returned = 0;
      if (plain && (is_none(result.get()) || result.get() == &_Py_TrueStruct)) return true;
      const Ref whole(PyNumber_Long(result.get()));
      if (!whole) return false;
      returned = PyLong_AsLongLong(whole.get());
      return true;
    }
    const size_t count = outputs.size() + (makes_state ? 1 : 0);
    std::vector<Ref> values;
    if (count == 1) {
      values.push_back(std::move(result));
    } else {
      const bool list = PyObject_IsInstance(result.get(), &PyTuple_Type) == 1 ||
                        PyObject_IsInstance(result.get(), &PyList_Type) == 1;
      if (!list || PySequence_Size(result.get()) != static_cast<ptrdiff_t>(count)) {
        const Ref type(PyObject_Type(result.get()));
        PyErr_Format(PyExc_TypeError, "expected %d values, got %s", static_cast<int>(count),
                     utf8(attribute(type.get(), "__name__").get()).c_str());
        return false;
      }
      for (size_t i = 0; i < count; ++i) {
        values.emplace_back(PySequence_GetItem(result.get(), static_cast<ptrdiff_t>(i)));
        if (!values.back()) return false;  // a class of its own may raise there
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Argument& output = *outputs[i].first;
      if (output.may_be_omitted && is_none(values[i].get())) {
        omitted_ += (omitted_.empty() ? "omitted " : ",") + output.name;
        continue;
      }
      if (!store_output(output, outputs[i].second, std::move(values[i]))) return false;
    }
    if (makes_state) states_[c.state] = std::move(values.back());
    return true;
  }

  void serve_call() {
    Control& c = link_.control();
    const Function& function = functions_.at(static_cast<size_t>(c.function));
    Ref values = arguments(function);
    int64_t returned = 0;
    omitted_.clear();
    link_.wait_for_go();
    Ref result(PyObject_CallObject(function.target.get(), values.get()));
    const bool good = result && store(function, std::move(result), returned);
    Outcome outcome = kReturned;
    std::string text = omitted_;
    if (!good) {
      const Raised raised = Raised::take();
      if (!raised.is(PyExc_Exception)) leave(raised);
      // An exception is how Python refuses.
      outcome = raised.is(PyExc_ValueError) && raised.text.find("read-only") != std::string::npos
                    ? kInputFault
                    : kRaised;
      text = raised.text;
    }
    c.returned = returned;
    link_.note(outcome, text.c_str());
    link_.finish();
  }

  // sys.exit and its kin end the process, as they say.
  [[noreturn]] static void leave(const Raised& raised) {
    int64_t code = 1;
    if (raised.is(PyExc_SystemExit) && raised.value) {
      const Ref said = attribute(raised.value.get(), "code");
      const Ref whole(said && !is_none(said.get()) ? PyNumber_Long(said.get()) : nullptr);
      code = whole ? PyLong_AsLongLong(whole.get()) : 0;
    }
    _exit(static_cast<int>(code));
  }

  // Bytes of the arrays inside a state, whatever it is made of.
  int64_t bytes_of(PyObject* value, int depth) {
    constexpr int kMaxDepth = 4;
    if (value == nullptr) return 0;
    if (PyObject_IsInstance(value, numpy_.ndarray.get()) == 1) {
      const Ref bytes = attribute(value, "nbytes");
      return bytes ? PyLong_AsLongLong(bytes.get()) : 0;
    }
    if (depth > kMaxDepth) return 0;
    Ref list;
    if (PyObject_IsInstance(value, &PyList_Type) == 1 ||
        PyObject_IsInstance(value, &PyTuple_Type) == 1) {
      list = Ref::borrowed(value);
    } else if (PyObject_IsInstance(value, &PyDict_Type) == 1) {
      list = Ref(PyDict_Values(value));
    } else if (PyObject_HasAttrString(value, "__dict__") != 0) {
      return bytes_of(attribute(value, "__dict__").get(), depth + 1);
    }
    int64_t sum = 0;
    const ptrdiff_t count = list ? PySequence_Size(list.get()) : 0;
    for (ptrdiff_t i = 0; i < count; ++i) {
      sum += bytes_of(Ref(PySequence_GetItem(list.get(), i)).get(), depth + 1);
    }
    PyErr_Clear();
    return sum;
  }

  JudgeLink& link_;
  NumPy numpy_;
  std::vector<Function> functions_;
  std::map<int32_t, Ref> states_;
  std::string omitted_;  // by the current call, as the judge reads it
};

std::vector<std::string> program_arguments() {
  std::vector<std::string> words;
  PyObject* list = PySys_GetObject("argv");
  const ptrdiff_t count = list == nullptr ? 0 : PySequence_Size(list);
  for (ptrdiff_t i = 1; i < count; ++i) {
    words.push_back(utf8(Ref(PySequence_GetItem(list, i)).get()));
  }
  return words;
}

// The contender's folder in the place of ours, behind everything else: a file named numpy.py in it
// stays unseen.
void set_search_path(const std::string& contender) {
  PyObject* path = PySys_GetObject("path");
  const ptrdiff_t count = path == nullptr ? 0 : PySequence_Size(path);
  if (count == 0) return;
  PyList_SetSlice(path, count - 1, count, nullptr);
  const Ref folder = text_of(contender.substr(0, contender.rfind('/')));
  PyList_Append(path, folder.get());
}

[[noreturn]] void serve_python() {
  constexpr int kNoLink = 125;
  std::vector<std::string> words = program_arguments();
  constexpr std::string_view kAdapter = "adapter:";
  const bool adapted = !words.empty() && words.back().starts_with(kAdapter);
  if (adapted) words.back().erase(0, kAdapter.size());
  JudgeLink* link = JudgeLink::open();
  if (link == nullptr || words.size() < 3) _exit(kNoLink);
  link->wait();
  NumPy numpy;
  const bool there = numpy.load();
  link->acknowledge();
  link->wait();
  static PythonServer* server = nullptr;
  if (there) {
    set_search_path(words[2]);
    if (adapted) AdapterWatch::start(*link, words.back());
    server = new PythonServer(*link, std::move(numpy), read_functions(words[1]));
  }
  if (!there || !server->load({words.begin() + 2, words.end()})) {
    link->note(kStartFailed, Raised::take().text.c_str());
    link->acknowledge();
    _exit(1);
  }
  server->run();
}

}  // namespace
}  // namespace touchstone::judge::child

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_touchstone_child() {
  touchstone::judge::child::serve_python();
}
