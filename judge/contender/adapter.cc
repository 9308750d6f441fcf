#include "judge/contender/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "json/json.h"
#include "judge/contender/abi_shim.h"
#include "judge/contender/binding.h"
#include "judge/sandbox/read_file.h"
#include "text/edit_distance.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxAdapterSource = 4 << 20;

// Other names for the arguments of the contracts, as they are met in the wild.
struct Alias {
  std::string_view argument;
  std::array<std::string_view, 8> names;
};
constexpr std::array<Alias, 59> kAliases = {{
    {"rows", {"n", "nrows", "num_rows", "batch", "batch_size", "m"}},
    {"vocab", {"v", "vocab_size", "n_vocab", "ncols", "num_cols", "cols"}},
    {"k", {"topk", "top_k", "kk", "num_k", "key", "k_cache"}},
    {"logits", {"x", "input", "in", "scores", "logit"}},
    {"probabilities", {"probs", "values", "p", "out_values", "prob", "out_probs"}},
    {"indices", {"idx", "ids", "index", "out_indices", "out_idx", "tokens"}},
    {"cols", {"d", "dim", "hidden", "hidden_size", "width", "ncols", "c"}},
    {"eps", {"epsilon"}},
    {"x", {"input", "in", "inp"}},
    {"gamma", {"weight", "w", "g"}},
    {"beta", {"bias", "b"}},
    {"y", {"out", "output"}},
    {"dy", {"grad", "grad_out", "dout", "grad_output"}},
    {"dx", {"grad_in", "grad_input", "dinp"}},
    {"dgamma", {"dweight", "dw", "grad_weight"}},
    {"dbeta", {"dbias", "db", "grad_bias"}},
    {"batch", {"b", "bs", "batch_size", "nbatch"}},
    {"query_heads", {"heads", "h", "num_heads", "n_heads", "q_heads", "hq"}},
    {"kv_heads", {"num_kv_heads", "n_kv_heads", "hkv", "kv_head_num"}},
    {"queries", {"seq_q", "q_len", "nq", "seqlen_q", "seq_len", "seqlen", "n", "t"}},
    {"keys", {"seq_k", "kv_len", "nk", "seqlen_k", "k_len"}},
    {"dim", {"d", "head_dim", "d_head", "head_size"}},
    {"head_dim", {"d", "dim", "d_head", "head_size"}},
    {"causal", {"is_causal", "mask", "use_causal"}},
    {"scale", {"sm_scale", "softmax_scale", "scaling"}},
    {"q", {"query", "queries_in"}},
    {"v", {"value", "values", "v_cache"}},
    {"prompts", {"batch", "batch_size", "num_prompts", "n", "b"}},
    {"states", {"num_states", "n_states"}},
    {"beams", {"num_beams", "beam_width", "beam_size", "width", "n_beams"}},
    {"max_tokens", {"max_len", "max_length", "max_new_tokens", "max_steps"}},
    {"min_tokens", {"min_len", "min_length", "min_new_tokens"}},
    {"eos_count", {"num_eos", "n_eos"}},
    {"length_penalty", {"alpha", "penalty", "lenpen"}},
    {"next", {"transitions", "next_state", "next_states"}},
    {"start", {"start_states", "initial", "begin"}},
    {"prompt_tokens", {"prompt_lengths", "prompt_len", "prompt_lens"}},
    {"eos", {"eos_token", "eos_id", "eos_ids", "eos_token_id", "end"}},
    {"tokens", {"token_ids", "sequences", "output_ids", "ids"}},
    {"lengths", {"lens", "seq_lens", "length"}},
    {"finish", {"finished", "finish_reason", "done", "reasons"}},
    {"log_probabilities", {"logprobs", "log_probs", "logp"}},
    {"scores", {"score", "out_scores"}},
    {"requests", {"batch", "batch_size", "num_requests", "n"}},
    {"nodes", {"num_nodes", "tree_size", "n_nodes"}},
    {"steps", {"max_depth", "num_steps", "depth"}},
    {"temperature", {"temp", "t"}},
    {"draft", {"draft_logits", "draft_probs", "q"}},
    {"allowed", {"mask", "masks", "allowed_tokens"}},
    {"parents", {"parent", "parent_ids", "tree"}},
    {"history", {"past", "context", "history_ids"}},
    {"path", {"accepted_path", "best_path"}},
    {"accepted", {"num_accepted", "accept_length", "n_accepted"}},
    {"outputs", {"out_features", "n", "rows_out", "out_dim"}},
    {"inputs", {"in_features", "k", "cols", "in_dim"}},
    {"group", {"group_size", "gs", "block", "block_size"}},
    {"weight", {"w", "weights"}},
    {"packed", {"codes", "qweight", "w_packed", "packed_weight", "wq"}},
    {"scales", {"scale", "s", "w_scale", "weight_scales"}},
}};

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool same_argument(const std::string& contract, const std::string& theirs) {
  const std::string name = lower_case(theirs);
  if (name == contract) return true;
  const auto known = std::ranges::find(kAliases, contract, &Alias::argument);
  return known != kAliases.end() && !name.empty() &&
         std::ranges::find(known->names, name) != known->names.end();
}

bool has_word(const std::string& type, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) {
    const std::size_t at = type.find(word);
    return at != std::string::npos;
  });
}

bool is_pointer_type(const std::string& type) { return type.find('*') != std::string::npos; }
bool is_class_type(const std::string& type) {
  return type.find_first_of("<>&") != std::string::npos;
}

bool is_integer_type(const std::string& type) {
  return !is_pointer_type(type) && !is_class_type(type) &&
         has_word(type, {"int", "long", "size_t", "short", "char", "bool", "unsigned"});
}

// What is wrong with one argument of a C function; empty when the contract can pass it.
std::string argument_mismatch(const Argument& argument, const std::string& type) {
  const auto expected = [&](std::string_view what) {
    return fmt::format("{}: expected {}, it takes {}", argument.name, what, type);
  };
  const bool constant = type.find("const") != std::string::npos;
  const bool of_float = has_word(type, {"float"}) && !has_word(type, {"float2", "float4"});
  switch (argument.kind) {
    case ArgumentKind::i64:
      return is_integer_type(type) ? "" : expected("a whole number");
    case ArgumentKind::f32:
      return !is_pointer_type(type) && !is_class_type(type) && has_word(type, {"float", "double"})
                 ? ""
                 : expected("a number");
    case ArgumentKind::state:
    case ArgumentKind::handle:
      return is_pointer_type(type) ? "" : expected("a pointer");
    case ArgumentKind::input:
    case ArgumentKind::output:
      break;
  }
  const bool fits = argument.dtype == DType::f32 ? of_float : has_word(type, {"int"});
  const bool element = fits || has_word(type, {"void"});
  const bool one = std::ranges::count(type, '*') == 1;
  if (!is_pointer_type(type) || is_class_type(type) || !one || !element) {
    return expected(argument.dtype == DType::f32 ? "a pointer to float" : "a pointer to int32_t");
  }
  if (argument.kind == ArgumentKind::output && constant) return expected("what can be written to");
  return "";
}

std::string c_mismatch(const Function& function, const Signature& s, bool cuda) {
  if (s.is_template) return "it is a template";
  const std::size_t count = function.arguments.size() + (cuda ? 1 : 0);
  if (s.types.size() != count) {
    return fmt::format("it takes {} arguments, the contract has {}", s.types.size(), count);
  }
  for (std::size_t i = 0; i < function.arguments.size(); ++i) {
    const std::string wrong = argument_mismatch(function.arguments[i], s.written[i]);
    if (!wrong.empty()) return fmt::format("argument {}, {}", i + 1, wrong);
  }
  const std::string& returns = s.written_return;
  if (returns == "auto" || returns == "void") return "";
  if (function.returns == Returns::handle && !is_pointer_type(returns)) {
    return fmt::format("it returns {}, not a pointer", returns);
  }
  const bool number = function.returns == Returns::status || function.returns == Returns::size;
  if (number && !is_integer_type(returns)) {
    return fmt::format("it returns {}, not a whole number", returns);
  }
  return "";
}

// The arguments of a function in Python, in their order. A state is made by the first function that
// has one.
std::vector<std::string> python_arguments(const TaskCard& card, const Function& function) {
  const auto has_state = [](const Function& f) {
    return std::ranges::find(f.arguments, ArgumentKind::state, &Argument::kind) !=
           f.arguments.end();
  };
  const auto maker = std::ranges::find_if(card.functions, has_state);
  const bool makes = maker != card.functions.end() && maker->name == function.name;
  std::vector<std::string> names;
  for (const Argument& argument : function.arguments) {
    if (argument.kind == ArgumentKind::output) continue;
    if (argument.kind == ArgumentKind::state && makes) continue;
    names.push_back(argument.name);
  }
  return names;
}

std::string python_mismatch(const TaskCard& card, const Function& function, const Signature& s) {
  const std::vector<std::string> wanted = python_arguments(card, function);
  const auto count = static_cast<int>(wanted.size());
  const auto most = static_cast<int>(s.names.size());
  if (count < s.required || (count > most && !s.variadic)) {
    return fmt::format("it takes {} arguments, the contract has {} ({})", s.names.size(),
                       wanted.size(), fmt::join(wanted, ", "));
  }
  for (std::size_t i = 0; i < s.names.size() && i < wanted.size(); ++i) {
    const auto other = std::ranges::find(wanted, s.names[i]);
    if (other != wanted.end() && *other != wanted[i]) {
      return fmt::format("argument {} is {}, the contract has {} there", i + 1, s.names[i],
                         wanted[i]);
    }
  }
  return "";
}

// ---- adapters
// ----------------------------------------------------------------------------------------------

// The function of theirs that takes most of what the contract gives, by names; then the one that is
// called most alike.
const Signature* nearest_signature(const Function& function, const std::vector<Signature>& theirs) {
  const Signature* best = nullptr;
  double best_value = -1e9;
  for (const Signature& s : theirs) {
    if (s.is_static) continue;
    int known = 0;
    for (const std::string& name : s.names) {
      known += std::ranges::any_of(function.arguments,
                                   [&](const Argument& a) { return same_argument(a.name, name); })
                   ? 1
                   : 0;
    }
    // A template has to be instantiated by hand: only where nothing else is nearly as good.
    const double value =
        known - (s.is_template ? 3.0 : 0.0) -
        0.2 * static_cast<double>(edit_distance(lower_case(s.name), function.name));
    if (value <= best_value) continue;
    best = &s;
    best_value = value;
  }
  return best;
}

const Argument* argument_for(const Function& function, const std::string& name) {
  for (const bool exact : {true, false}) {
    for (const Argument& argument : function.arguments) {
      if (exact ? argument.name == lower_case(name) : same_argument(argument.name, name)) {
        return &argument;
      }
    }
  }
  return nullptr;
}

// Whether the includes of an adapter are enough to write the type down.
bool is_known_type(const std::string& type) {
  constexpr std::array<std::string_view, 41> kWords = {
      "void",     "bool",     "char",     "short",    "int",         "long",        "unsigned",
      "signed",   "float",    "double",   "size_t",   "ptrdiff_t",   "auto",        "const",
      "volatile", "restrict", "struct",   "int8_t",   "int16_t",     "int32_t",     "int64_t",
      "uint8_t",  "uint16_t", "uint32_t", "uint64_t", "std",         "vector",      "array",
      "span",     "pair",     "tuple",    "string",   "string_view", "optional",    "__restrict",
      "inline",   "noexcept", "extern",   "byte",     "uintptr_t",   "__restrict__"};
  std::string word;
  for (const char c : type + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
      continue;
    }
    const bool number = !word.empty() && std::isdigit(static_cast<unsigned char>(word[0])) != 0;
    const bool cuda = word == "cudaStream_t" || word == "cudaError_t";
    if (!word.empty() && !number && !cuda && std::ranges::find(kWords, word) == kWords.end()) {
      return false;
    }
    word.clear();
  }
  return true;
}

bool has_own_types(const Signature& s) {
  return !is_known_type(s.written_return) || !std::ranges::all_of(s.written, is_known_type);
}

// A file name within a comment or a string: nothing that could end it.
std::string harmless(std::string name) {
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\') c = '?';
  }
  return name;
}

std::string c_declared(const Signature& s) {
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < s.written.size(); ++i) {
    arguments.push_back(s.names[i].empty() ? s.written[i]
                                           : fmt::format("{} {}", s.written[i], s.names[i]));
  }
  return fmt::format("{} {}({})", s.written_return, s.name, fmt::join(arguments, ", "));
}

// What a parameter of theirs gets: an argument of the contract, or a hole.
std::string c_value(const Function& function, const Signature& s, std::size_t i, bool& holes) {
  const std::string& type = s.written[i];
  if (type == "cudaStream_t" || lower_case(s.names[i]) == "stream") {
    return fmt::format("static_cast<{}>(stream)", type);
  }
  const Argument* argument = argument_for(function, s.names[i]);
  if (argument != nullptr && argument_mismatch(*argument, type).empty()) {
    const bool number = argument->kind == ArgumentKind::i64 || argument->kind == ArgumentKind::f32;
    if (number) return fmt::format("static_cast<{}>({})", type, argument->name);
    const bool opaque =
        argument->kind == ArgumentKind::handle || argument->kind == ArgumentKind::state;
    return opaque ? fmt::format("static_cast<{}>({})", type, argument->name) : argument->name;
  }
  holes = true;
  return fmt::format("hole<{}>() /* HOLE: {} */", type, s.names[i].empty() ? "?" : s.names[i]);
}

std::string c_body(const Function& function, const Signature& s, bool& holes) {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < s.written.size(); ++i) {
    values.push_back(c_value(function, s, i, holes));
  }
  const std::string scope = s.scope.empty() ? "" : s.scope + "::";
  const std::string call = fmt::format("{}{}({})", scope, s.name, fmt::join(values, ",\n      "));
  if (function.returns == Returns::nothing) return fmt::format("  {};\n", call);
  const bool handle = function.returns == Returns::handle && is_pointer_type(s.written_return);
  if (handle || is_integer_type(s.written_return)) {
    return fmt::format("  return {};\n", call);
  }
  if (s.written_return == "void" && function.returns == Returns::status) {
    return fmt::format("  {};\n  return 0;\n", call);
  }
  holes = true;
  return fmt::format(
      "  auto result = {};\n  static_cast<void>(result);  // HOLE: into the outputs\n"
      "  return {};  // HOLE: success\n",
      call, function.returns == Returns::handle ? "nullptr" : "1");
}

std::string c_adapter(const TaskCard& card, const std::vector<Signature>& theirs,
                      const std::string& file, bool cuda, bool from_c) {
  std::string functions;
  std::string declarations;
  std::vector<std::string> declared;
  bool holes = false;
  for (const Function& function : card.functions) {
    if (function.optional) continue;
    functions += fmt::format("\nextern \"C\" {} {{\n", c_declaration(function, cuda));
    for (const Argument& argument : function.arguments) {
      functions += fmt::format("  static_cast<void>({});\n", argument.name);
    }
    if (cuda) functions += "  static_cast<void>(stream);\n";
    const char* const refusal = function.returns == Returns::handle    ? "return nullptr"
                                : function.returns == Returns::nothing ? "return"
                                : function.returns == Returns::size    ? "return 0"
                                                                       : "return 1";
    functions += fmt::format("  if (!kFilled) {};\n", refusal);
    const Signature* s = nearest_signature(function, theirs);
    if (s == nullptr || s->is_template || has_own_types(*s)) {
      holes = true;
      functions += fmt::format("  // HOLE: {}\n  {};\n}}\n",
                               s == nullptr ? "nothing in " + file + " was found for it"
                               : s->is_template
                                   ? s->name + " is a template: call an instance of it"
                                   : "include what declares its types, and call " + c_declared(*s),
                               refusal);
      continue;
    }
    const std::string text = c_declared(*s);
    if (std::ranges::find(declared, text) == declared.end()) {
      declared.push_back(text);
      const bool c = s->c_linkage || from_c;
      declarations += s->scope.empty() ? fmt::format("{}{};\n", c ? "extern \"C\" " : "", text)
                                       : fmt::format("namespace {} {{\n{};\n}}\n", s->scope, text);
    }
    functions += c_body(function, *s, holes) + "}\n";
  }
  return fmt::format(
      "// From the contract of {} to the functions of {}. An adapter passes things on; it "
      "computes\n"
      "// nothing. Fill in what is marked HOLE, then set kFilled.\n"
      "#include <array>\n#include <cstddef>\n#include <cstdint>\n#include <optional>\n"
      "#include <span>\n#include <string>\n#include <string_view>\n#include <tuple>\n"
      "#include <type_traits>\n#include <utility>\n#include <vector>\n\n{}\n"
      "namespace {{\n"
      "constexpr bool kFilled = {};  // until it is true every call is refused\n"
      "template <class T>\n[[maybe_unused]] std::remove_cvref_t<T>& hole() {{\n"
      "  static std::remove_cvref_t<T> nothing{{}};\n  return nothing;\n}}\n"
      "}}  // namespace\n{}",
      card.id, file, declarations, holes ? "false" : "true", functions);
}

// What `import` takes, and what no module has that the adapter or NumPy needs.
bool is_python_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  constexpr std::array<std::string_view, 12> kTaken = {
      "numpy", "np", "class", "def", "import", "lambda", "pass", "from", "in", "is", "not", "if"};
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, fits) && std::ranges::find(kTaken, name) == kTaken.end();
}

std::string python_adapter(const TaskCard& card, const std::vector<Signature>& theirs,
                           const std::string& file) {
  const std::string shown = harmless(file);
  // A name that `import` does not take is loaded by its path.
  const std::string stem = fs::path(file).stem().string();
  const bool by_name = is_python_name(stem);
  const std::string module = by_name ? stem : "theirs";
  std::string functions;
  bool holes = false;
  for (const Function& function : card.functions) {
    if (function.optional || is_sizer(card, function)) continue;
    const std::vector<std::string> wanted = python_arguments(card, function);
    functions += fmt::format(
        "\n\ndef {}({}):\n    if not FILLED:\n"
        "        raise NotImplementedError(\"the adapter has holes\")\n",
        function.name, fmt::join(wanted, ", "));
    const Signature* s = nearest_signature(function, theirs);
    if (s == nullptr) {
      holes = true;
      functions +=
          fmt::format("    raise NotImplementedError  # HOLE: no function of {} fits\n", shown);
      continue;
    }
    std::vector<std::string> values;
    for (std::size_t i = 0; i < s->names.size(); ++i) {
      const auto known = std::ranges::find_if(
          wanted, [&](const std::string& name) { return same_argument(name, s->names[i]); });
      if (known == wanted.end() && static_cast<int>(i) >= s->required) continue;  // has a default
      holes = holes || known == wanted.end();
      values.push_back(known == wanted.end() ? fmt::format("{}=None", s->names[i])
                                             : fmt::format("{}={}", s->names[i], *known));
      if (known == wanted.end()) values.back() += " # HOLE";
    }
    functions += fmt::format("    result = {}.{}(\n", module, s->name);
    for (const std::string& value : values) {
      const std::size_t comment = value.find(" # ");
      functions += comment == std::string::npos
                       ? fmt::format("        {},\n", value)
                       : fmt::format("        {}, {}\n", value.substr(0, comment),
                                     value.substr(comment + 1));
    }
    functions += "    )\n";
    std::vector<std::string> outputs;
    for (const Argument& a : function.arguments) {
      if (a.kind == ArgumentKind::output) outputs.push_back(a.name);
    }
    if (!outputs.empty()) {
      // In which order a function returns several is not in its signature.
      holes = holes || outputs.size() > 1;
      functions += fmt::format("    return result  # {}{}, float32 or int32, in this order\n",
                               outputs.size() > 1 ? "HOLE: " : "", fmt::join(outputs, ", "));
    } else {
      functions += "    return result\n";
    }
  }
  return fmt::format(
      "\"\"\"From the contract of {} to the functions of {}. Fill in what is marked HOLE, then "
      "set\n"
      "FILLED.\"\"\"\n\n{}\n\nFILLED = {}\n{}",
      card.id, shown,
      by_name ? fmt::format("import numpy as np\n\nimport {}", module)
              : fmt::format("import importlib.util\nimport pathlib\n\nimport numpy as np\n\n"
                            "_spec = importlib.util.spec_from_file_location(\n"
                            "    \"theirs\", pathlib.Path(__file__).with_name({}))\n"
                            "theirs = importlib.util.module_from_spec(_spec)\n"
                            "_spec.loader.exec_module(theirs)",
                            Json(file).dump()),
      holes ? "False" : "True", functions);
}

Language adapter_language(const fs::path& file) {
  const std::string e = file.extension().string();
  if (e == ".py") return Language::numpy;
  if (e == ".cu" || e == ".cuh") return Language::cuda;
  if (e == ".c") return Language::c;
  if (e == ".cc" || e == ".cpp" || e == ".cxx" || e == ".C") return Language::cpp;
  throw InvalidArgument(fmt::format(
      "deploy: --from: {}: expected a file that ends in .c, .cc, .cpp, .cu or .py", file.string()));
}

}  // namespace

std::vector<Signature> signatures_in(const fs::path& file) {
  const std::string text = read_file(file, kMaxAdapterSource);
  return file.extension() == ".py" ? scan_python(text) : scan_c(text);
}

std::string signature_mismatch(const TaskCard& card, const Function& function,
                               const Signature& signature, Language language) {
  return language == Language::numpy ? python_mismatch(card, function, signature)
                                     : c_mismatch(function, signature, language == Language::cuda);
}

std::string adapter_name(Language language) {
  return language == Language::numpy  ? "adapter.py"
         : language == Language::cuda ? "adapter.cu"
                                      : "adapter.cc";
}

std::string make_adapter(const TaskCard& card, Language language,
                         const std::vector<Signature>& theirs, const std::string& file) {
  if (language == Language::numpy) return python_adapter(card, theirs, file);
  return c_adapter(card, theirs, harmless(file), language == Language::cuda,
                   language == Language::c);
}

namespace {

// All definitions of a contender; nothing where part of it is no source.
std::vector<Signature> signatures_of(const Contender& contender) {
  std::vector<Signature> found;
  std::vector<fs::path> files = contender.binding.sources;
  if (!contender.binding.adapter.empty()) files.push_back(contender.binding.adapter);
  for (const fs::path& file : files) {
    if (file.extension() == ".so") return {};
    for (Signature& s : signatures_in(contender.folder / file)) found.push_back(std::move(s));
  }
  return found;
}

}  // namespace

BadSignature bad_signature(const TaskCard& card, const Contender& contender,
                           const std::string& why) {
  const std::vector<Signature> found = signatures_of(contender);
  if (found.empty()) return {why, ""};
  const std::string file = contender.binding.sources.front().string();
  return {fmt::format("{}; {} on standard output maps it (touchstone deploy NAME --task {} --from "
                      "{} writes it)",
                      why, adapter_name(contender.language), card.id, file),
          make_adapter(card, contender.language, found, file)};
}

void check_signatures(const TaskCard& card, const Contender& contender) {
  const std::vector<Signature> found = signatures_of(contender);
  for (const auto& [contract, name] : contender.binding.functions) {
    const auto function = std::ranges::find(card.functions, contract, &Function::name);
    std::string wrong;
    bool fits = false;
    for (const Signature& s : found) {
      if (s.name != name) continue;
      const std::string why = signature_mismatch(card, *function, s, contender.language);
      fits = fits || why.empty();
      wrong = why;
    }
    if (fits || wrong.empty()) continue;  // what is in no source is for the linker to say
    throw bad_signature(card, contender,
                        fmt::format("contender '{}': {} does not match the contract of {}: {}",
                                    contender.name, name, contract, wrong));
  }
}

std::vector<fs::path> deploy_adapter(const fs::path& folder, const fs::path& file,
                                     const Task& task) {
  const TaskCard& card = task.card();
  const Language language = adapter_language(file);
  const bool cuda = std::ranges::find(card.devices, "cuda") != card.devices.end();
  if (language == Language::cuda && !cuda) {
    throw InvalidArgument(fmt::format("deploy: --from: task {} takes no CUDA contenders", card.id));
  }
  std::error_code error;
  if (fs::exists(folder, error) && (!fs::is_directory(folder) || !fs::is_empty(folder))) {
    throw InvalidArgument(
        fmt::format("deploy: {}: exists and is not an empty folder", folder.string()));
  }
  const std::string text = read_file(file, kMaxAdapterSource);
  const std::vector<Signature> theirs = signatures_in(file);
  // Of a class only a person knows how it is used: an adapter of holes.
  const bool has_class = language == Language::numpy &&
                         (text.starts_with("class ") || text.find("\nclass ") != std::string::npos);
  if (theirs.empty() && !has_class) {
    throw InvalidArgument(
        fmt::format("deploy: --from: {}: no function is defined in it", file.string()));
  }
  const std::string name = file.filename().string();
  const std::string adapter = adapter_name(language);
  if (name == adapter) {
    throw InvalidArgument(fmt::format("deploy: --from: {}: is called like the adapter", name));
  }
  fs::create_directories(folder);
  write_file(folder / name, text);
  write_file(folder / adapter, make_adapter(card, language, theirs, name));
  write_file(folder / "contender.json",
             fmt::format("{{\n  \"task\": \"{}\",\n  \"sources\": [{}],\n"
                         "  \"adapter\": \"{}\"\n}}\n",
                         card.id, Json(name).dump(), adapter));
  write_file(folder / "PROMPT.md", card.prompt);
  return {name, adapter, "contender.json", "PROMPT.md"};
}

}  // namespace touchstone::judge
