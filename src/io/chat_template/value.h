// The values of a rendering, with the meaning Python gives them. Immutable, apart from namespaces,
// generators and the state of loops. What a template can tie into a cycle (namespaces, macros,
// loops) belongs to the rendering; everything else is shared and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace touchstone::inline v0::io::chat {

class Runtime;
struct Namespace;
struct Macro;
struct Loop;

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  floating,
  string,
  list,
  tuple,
  keys,    // dict.keys()
  values,  // dict.values()
  items,   // dict.items()
  range,
  dict,
  generator,
  name_space,
  macro,
  loop,
  function,  // of the environment
  method,    // bound to its object
};

enum class Function : std::uint8_t { range, name_space, dict, raise_exception, strftime_now };

// depth: how far values are nested in it, so that walks over them may recurse.
struct Object {
  int depth = 1;
  virtual ~Object() = default;
};

class Value {
 public:
  Value() = default;  // undefined
  static Value none() { return Value(Kind::none); }
  static Value of(bool value) {
    Value result(Kind::boolean);
    result.number_.boolean = value;
    return result;
  }
  static Value of(std::int64_t value) {
    Value result(Kind::integer);
    result.number_.integer = value;
    return result;
  }
  static Value of(double value) {
    Value result(Kind::floating);
    result.number_.floating = value;
    return result;
  }
  static Value of(Function function) {
    Value result(Kind::function);
    result.number_.integer = static_cast<std::int64_t>(function);
    return result;
  }
  static Value of(Namespace* object) { return pointing(Kind::name_space, object); }
  static Value of(Macro* object) { return pointing(Kind::macro, object); }
  static Value of(Loop* object) { return pointing(Kind::loop, object); }
  // Without a charge: for constants of the template. Values of a rendering come from Runtime.
  static Value of_text(std::string text, bool markup = false);
  static Value of_object(Kind kind, std::shared_ptr<const Object> object) {
    Value result(kind);
    result.object_ = std::move(object);
    return result;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_string() const { return kind_ == Kind::string; }
  // An instance of int for Python: a truth value is one.
  bool is_integral() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool is_number() const { return is_integral() || kind_ == Kind::floating; }
  // Holds its elements in items().
  bool is_sequence() const { return kind_ >= Kind::list && kind_ <= Kind::range; }

  bool boolean() const { return number_.boolean; }
  std::int64_t integer() const {
    return kind_ == Kind::boolean ? std::int64_t{number_.boolean} : number_.integer;
  }
  double floating() const {
    return kind_ == Kind::floating ? number_.floating : static_cast<double>(integer());
  }
  Function function() const { return static_cast<Function>(number_.integer); }
  const std::string& text() const;
  bool is_markup() const;
  const std::vector<Value>& items() const;
  const std::vector<std::pair<Value, Value>>& members() const;
  Namespace& name_space() const { return *static_cast<Namespace*>(number_.pointer); }
  Macro& macro() const { return *static_cast<Macro*>(number_.pointer); }
  Loop& loop() const { return *static_cast<Loop*>(number_.pointer); }
  const Object* object() const { return object_.get(); }
  int depth() const { return object_ == nullptr ? 0 : object_->depth; }
  // `is` of Python.
  bool same_as(const Value& other) const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  template <class T>
  static Value pointing(Kind kind, T* object) {
    Value result(kind);
    result.number_.pointer = object;
    return result;
  }

  Kind kind_ = Kind::undefined;
  union {
    std::int64_t integer;
    bool boolean;
    double floating;
    void* pointer;
  } number_ = {0};
  std::shared_ptr<const Object> object_;
};

struct String : Object {
  std::string text;
  bool markup = false;  // markupsafe.Markup: adding to it escapes
};

struct Sequence : Object {
  std::vector<Value> items;
};

struct Range : Sequence {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> members;
};

struct Generator : Object {
  // False at the end. What it computes happens when it is called, as in Python.
  mutable std::function<bool(Runtime&, Value&)> next;
};

struct Method : Object {
  Value self;
  std::string name;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  bool being_printed = false;
};

// "str", "int", ...: the names of Python, for messages.
const char* type_name(const Value& value);

// bool(value).
bool is_true(const Value& value);

}  // namespace touchstone::inline v0::io::chat
