// How function names are matched with a contract, and what is refused.
#include "judge/contender/binding.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "judge/contender/adapter.h"
#include "judge/contender/contender.h"
#include "judge/run/test_task.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

using test::Folder;
using test::scale_function;
using test::TestTask;

Function named(const std::string& name, int arguments, bool optional = false) {
  Function function;
  function.name = name;
  function.optional = optional;
  for (int i = 0; i < arguments; ++i) {
    function.arguments.push_back({"a" + std::to_string(i), ArgumentKind::i64});
  }
  return function;
}

std::map<std::string, std::string> propose(const std::vector<Function>& functions,
                                           const std::vector<Candidate>& candidates,
                                           const std::map<std::string, std::string>& written = {}) {
  TaskCard card;
  card.id = "test";
  card.functions = functions;
  return propose_binding(card, Language::cpp, candidates, written, "x");
}

TEST(Binding, FindsNamesOfTheWild) {
  const std::vector<Function> pair = {named("layer_norm_forward", 8),
                                      named("layer_norm_backward", 10)};
  for (const auto& [forward, backward] : std::vector<std::pair<std::string, std::string>>{
           {"layer_norm_forward", "layer_norm_backward"},
           {"layernorm_forward", "layernorm_backward"},
           {"LayerNormForward", "LayerNormBackward"},
           {"layernorm_fwd", "layernorm_bwd"},
           {"layer_norm_forward_cpu", "layer_norm_backward_cpu"},
           {"my_layernorm_forward", "my_layernorm_backward"},
           {"layer_norms_forwards", "layer_norms_backwards"}}) {
    const auto binding = propose(pair, {{backward, 10}, {"helper", 8}, {"main", 0}, {forward, 8}});
    EXPECT_EQ(binding.at("layer_norm_forward"), forward);
    EXPECT_EQ(binding.at("layer_norm_backward"), backward);
  }
}

TEST(Binding, ArgumentsDecide) {
  EXPECT_EQ(propose({named("scale", 4)}, {{"scale_row", 3}, {"scale_all", 4}}).at("scale"),
            "scale_all");
  EXPECT_THROW(propose({named("scale", 4)}, {{"scale_row", 3}}), InvalidArgument);
  // The very name is taken at its word: an error of the caller shows later, and clearer.
  EXPECT_EQ(propose({named("scale", 4)}, {{"scale", 3}}).at("scale"), "scale");
}

TEST(Binding, WhatIsWrittenStays) {
  const auto binding =
      propose({named("scale", 4)}, {{"scale", 4}, {"other", 4}}, {{"scale", "other"}});
  EXPECT_EQ(binding.at("scale"), "other");
}

TEST(Binding, OneFunctionServesOnce) {
  EXPECT_THROW(propose({named("append", 2), named("appends", 2)}, {{"append", 2}}),
               InvalidArgument);
}

TEST(Binding, OptionalFunctionsAreNotGuessed) {
  const auto binding =
      propose({named("scale", 4), named("fork", 3, true)}, {{"scale", 4}, {"work", 3}});
  EXPECT_FALSE(binding.contains("fork"));
}

TEST(Binding, SaysWhatIsThere) {
  try {
    propose({named("softmax_topk", 6)}, {{"run", 2}, {"main", 0}});
    FAIL();
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("no function for softmax_topk (6 arguments)"), std::string::npos) << what;
    EXPECT_NE(what.find("run(2 arguments), main(0 arguments)"), std::string::npos) << what;
  }
}

TEST(Signatures, OfC) {
  const std::vector<Signature> found = scan_c(R"(
    #include <vector>
    #define LONG(x) do { \
      int fake(int a) { } } while (0)
    /* int commented(int a) {} */ // int commented_too() {}
    static float helper(const float *x, long n) { if (n) { return helper(x, 0); } return 0; }
    extern "C" {
    int scale(int64_t n, float factor, const float *restrict x, float y[]) { return 0; }
    }
    namespace a { namespace b {
    void inner(std::vector<float> v, int k = 3) { const char* s = "int quoted(int a) {"; }
    } }
    struct S { int method(int a) { return a; } };
    int declared(int a, int b);
    template <class T> T generic(T a) { return a; }
    extern "C" void* make(void) { return 0; }
    unsigned long long big(unsigned n) noexcept { return n; }
  )");
  std::vector<std::string> names;
  names.reserve(found.size());
  for (const Signature& s : found) names.push_back(s.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"helper", "scale", "inner", "generic", "make", "big"}));
  EXPECT_TRUE(found[0].is_static);
  EXPECT_EQ(found[1].returns, "int");
  EXPECT_EQ(found[1].types,
            (std::vector<std::string>{"int64_t", "float", "const float*", "float*"}));
  EXPECT_TRUE(found[1].plain);
  EXPECT_FALSE(found[2].plain);
  EXPECT_EQ(found[2].required, 1);
  EXPECT_EQ(found[2].scope, "a::b");
  EXPECT_EQ(found[2].written[0], "std::vector<float>");
  EXPECT_TRUE(found[3].is_template);
  EXPECT_EQ(found[4].returns, "void*");
  EXPECT_TRUE(found[4].types.empty());
  EXPECT_TRUE(found[1].c_linkage && found[4].c_linkage && !found[5].c_linkage);
  EXPECT_EQ(found[5].returns, "unsigned long long");
}

TEST(Signatures, StylesOfTheWild) {
  const std::vector<Signature> found = scan_c(R"(
    auto trailing(long n) -> int { return 0; }
    int quiet(int n) noexcept(true) { return n; }
    EXPORT int marked(const float* x) { return 0; }
    API(int) wrapped(float* y) { return 0; }
    [[nodiscard]] int checked(int n) { return n; }
    __attribute__((visibility("default"))) int shown(int n) { return n; }
  )");
  ASSERT_EQ(found.size(), 6U);
  for (const Signature& s : found) {
    EXPECT_EQ(s.returns, "int") << s.name;
    EXPECT_TRUE(s.plain) << s.name;
    EXPECT_EQ(s.types.size(), 1U) << s.name;
  }
  EXPECT_EQ(found[3].name, "wrapped");
  EXPECT_EQ(found[3].names[0], "y");
}

std::string repeated(const std::string& text, int64_t bytes) {
  std::string all;
  while (static_cast<int64_t>(all.size()) < bytes) all += text;
  return all;
}

// None of these may take time that grows with the square of the text, or memory that does.
TEST(Signatures, OfTextThatIsWrittenForTheScanner) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(scan_c(repeated("auto f()->", 400 << 10)).empty());
  const std::vector<Signature> nested =
      scan_c(repeated("namespace a{", 400 << 10) + repeated("int f(){}", 400 << 10));
  ASSERT_FALSE(nested.empty());
  EXPECT_LT(nested.back().scope.size(), 200U);
  EXPECT_LE(nested.size(), 2000U);
  for (const char* never_closed : {"int f() [[", "int f() noexcept(", "f(", "template int f(){}"}) {
    EXPECT_LE(scan_c(repeated(never_closed, 400 << 10)).size(), 2000U);
  }
  const std::vector<Signature> named =
      scan_c("namespace " + repeated("a", 400 << 10) + "{" + repeated("int f(){}", 400 << 10));
  ASSERT_FALSE(named.empty());
  EXPECT_LT(named.back().scope.size(), 1000U);
  EXPECT_LE(scan_python(repeated("def f(a):\n", 1 << 20)).size(), 2000U);
  EXPECT_TRUE(scan_python(repeated("def \n", 4 << 20)).empty());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 15.0);
}

TEST(Signatures, OfPython) {
  const std::vector<Signature> found = scan_python(
      "import numpy as np\n"
      "def scale(n, factor,\n          x):\n    def inner(a): pass\n    return x\n"
      "class C:\n    def method(self): pass\n"
      "def other(a, b=(1, 2), *rest, key=None) -> int: pass\n");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "scale");
  EXPECT_EQ(found[0].required, 3);
  EXPECT_EQ(found[1].name, "other");
  EXPECT_EQ(found[1].required, 1);
}

class Reading : public ::testing::Test {
 protected:
  // What reading the folder complains about; empty when it does not.
  std::string complaint(const std::filesystem::path& path) {
    try {
      read_contender(path, task_);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  void expect_complaint(const std::string& json, const std::string& part) {
    folder_.write("contender.json", json);
    const std::string what = complaint(folder_.path());
    EXPECT_NE(what.find(part), std::string::npos) << json << "\n -> " << what;
  }

  TestTask task_{{scale_function()}};
  Folder folder_;
};

constexpr const char* kScale =
    "int scale(long n, float f, const float* x, float* y) { return 0; }\n";

TEST_F(Reading, FilesAndFolders) {
  const std::filesystem::path file = folder_.write("mine.c", kScale);
  Contender contender = read_contender(file, task_);
  EXPECT_EQ(contender.name, "mine");
  EXPECT_EQ(contender.language, Language::c);
  EXPECT_FALSE(contender.binding.proposed);
  folder_.write("test_mine.cc", "int main() { return 0; }");
  folder_.write("notes.txt", "nothing");
  contender = read_contender(folder_.path(), task_);
  EXPECT_EQ(contender.binding.sources, (std::vector<std::filesystem::path>{"mine.c"}));
  folder_.write("more.cc", "int twice(int a) { return 2 * a; }");
  contender = read_contender(folder_.path(), task_);
  EXPECT_EQ(contender.language, Language::cpp);
  EXPECT_EQ(contender.binding.sources.size(), 2U);
}

// A function that cannot be called as the contract says is wrong usage, with the adapter to copy.
TEST_F(Reading, SignaturesThatDoNotMatch) {
  const auto expect_usage = [&](const std::string& file, const std::string& text,
                                const std::string& part) {
    try {
      read_contender(folder_.write(file, text), task_);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const BadSignature& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(part), std::string::npos) << what;
      EXPECT_NE(what.find(adapter_name(parse_language(file.ends_with("py") ? "numpy" : "cpp"))),
                std::string::npos)
          << what;
      EXPECT_NE(error.adapter().find("scale("), std::string::npos) << error.adapter();
    }
  };
  expect_usage("a.cc", "extern \"C\" int scale(const float* x, float* y) { return 0; }",
               "takes 2 arguments");
  expect_usage("b.cc", "int scale(long n, float f, const double* x, float* y) { return 0; }",
               "a pointer to float");
  expect_usage("c.cc", "int scale(long n, float f, float* y, const float* x) { return 0; }",
               "can be written to");
  expect_usage("d.cc", "template <class T> int scale(T n, float f, const T* x, T* y) { return 0; }",
               "template");
  expect_usage("e.cc", "int scale(long n, float f, const std::vector<float>& x, float* y) {}",
               "a pointer to float");
  expect_usage("f.py", "def scale(x, factor):\n    return x\n", "takes 2 arguments");
  expect_usage("g.py", "def scale(x, n, factor):\n    return x\n", "argument 1 is x");
  // Styles that only look different are called as they are.
  for (const char* fine :
       {"extern \"C\" auto scale(long n, float f, const float* x, float* y) -> int { return 0; }",
        "extern \"C\" int scale(int n, double f, float x[], float* y) noexcept(true) { return 0; }",
        "EXPORT void scale(long n, float f, const float* x, float* y) {}"}) {
    EXPECT_NO_THROW(read_contender(folder_.write("fine.cc", fine), task_)) << fine;
  }
}

TEST_F(Reading, LacksAreAClosedList) {
  folder_.write("mine.c", kScale);
  expect_complaint(R"({"lacks": ["everything"]})", "nothing that test may lack");
  expect_complaint(R"({"lacks": "everything"})", "expected a list");
}

TEST_F(Reading, ProposalsAreMarked) {
  const Contender contender = read_contender(
      folder_.write("mine.py", "def scaled(n, factor, x):\n    return factor * x\n"), task_);
  EXPECT_EQ(contender.language, Language::numpy);
  EXPECT_EQ(contender.binding.functions.at("scale"), "scaled");
  EXPECT_TRUE(contender.binding.proposed);
}

TEST_F(Reading, Json) {
  folder_.write("a/mine.c", "int go(long n, float f, const float* x, float* y) { return 0; }\n");
  folder_.write("contender.json",
                R"({"name": "fine", "task": "test", "sources": ["a/mine.c"], "peer": true,
                    "functions": {"scale": "go"}})");
  const Contender contender = read_contender(folder_.path(), task_);
  EXPECT_EQ(contender.name, "fine");
  EXPECT_EQ(contender.binding.functions.at("scale"), "go");
  EXPECT_FALSE(contender.binding.proposed);
  EXPECT_TRUE(contender.peer);
}

TEST_F(Reading, BadPathsAndBadJsonAreNamed) {
  EXPECT_NE(complaint(folder_.path() / "nowhere").find("no such file or folder"),
            std::string::npos);
  EXPECT_NE(complaint(folder_.path()).find("no source"), std::string::npos);
  EXPECT_NE(complaint(folder_.write("a.txt", "")).find("expected a folder"), std::string::npos);
  EXPECT_NE(complaint("/dev/zero").find("expected a folder"), std::string::npos);
  folder_.write("mine.c", kScale);
  expect_complaint("{", "not valid JSON");
  expect_complaint("[]", "expected an object");
  expect_complaint(std::string(100000, '['), "not valid JSON");
  expect_complaint(R"({"flags": "-O0"})", "unknown key 'flags'");
  expect_complaint(R"({"name": 3})", "'name': expected a string");
  expect_complaint(R"({"name": "a\u0000b"})", "a contender's name has");
  expect_complaint(R"({"task": "other"})", "is for task other, not test");
  expect_complaint(R"({"sources": ["/etc/passwd"]})", "expected a relative path");
  expect_complaint(R"({"sources": ["../../etc/passwd"]})", "");
  expect_complaint(R"({"sources": ["nothing.c"]})", "no such file");
  expect_complaint(R"({"sources": "mine.c"})", "expected at most");
  expect_complaint(R"({"adapter": "."})", "not a plain file");
  expect_complaint(R"({"language": "rust"})", "expected c, cpp, cuda");
  expect_complaint(R"({"functions": {"scales": "go"}})", "did you mean 'scale'?");
  expect_complaint(R"({"functions": {"scale": "go; rm"}})", "expected the name of a function");
  expect_complaint(R"({"peer": 1})", "expected true or false");
  std::filesystem::create_symlink("/etc/passwd", folder_.path() / "link.c");
  expect_complaint(R"({"sources": ["link.c"]})", "lies outside");
  expect_complaint("{}" + std::string(2 << 20, ' '), "bytes, more than");
}

TEST_F(Reading, KindsDoNotMix) {
  folder_.write("mine.c", kScale);
  folder_.write("mine.py", "def scale(n, f, x): return x\n");
  EXPECT_NE(complaint(folder_.path()).find("several kinds"), std::string::npos);
  EXPECT_NE(complaint(folder_.write("gpu.cu", kScale)).find("takes no CUDA"), std::string::npos);
}

TEST_F(Reading, LibrariesAreHostile) {
  EXPECT_NE(complaint(folder_.write("a.so", "not a library")).find("not a shared library"),
            std::string::npos);
  std::string self;
  {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    self.assign(std::istreambuf_iterator<char>(file), {});
  }
  // Every kind of damage is an answer in words, never a crash.
  for (std::size_t i = 0; i < 64; ++i) {
    std::string damaged = self.substr(0, 1 << 16);
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    EXPECT_NE(complaint(folder_.write("b.so", damaged)), "") << i;
  }
}

}  // namespace
}  // namespace touchstone::judge
