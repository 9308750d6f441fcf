#include "judge/contender/deploy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "judge/contender/abi_shim.h"
#include "judge/contender/binding.h"
#include "judge/contender/commands.h"
#include "judge/sandbox/read_file.h"
#include "judge/task/task_texts.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

class Writer {
 public:
  explicit Writer(fs::path folder) : folder_(std::move(folder)) {}
  void write(const fs::path& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, text);
    written_.push_back(name);
  }
  std::vector<fs::path> take() { return std::move(written_); }

 private:
  fs::path folder_;
  std::vector<fs::path> written_;
};

std::string stub_body(const Function& function) {
  switch (function.returns) {
    case Returns::status:
      return "return 1; /* not written yet: an error status */";
    case Returns::size:
      return "return 0;";
    case Returns::handle:
      return "return 0; /* not written yet: no handle */";
    case Returns::nothing:
      return "";
  }
  return "";
}

// One argument a line would be longer than the contract itself: the names stay on the declaration,
// and unused ones are silenced in the body.
std::string c_template(const TaskCard& card, const char* linkage, bool cuda) {
  std::string text = fmt::format("// {}: see ../PROMPT.md.\n#include <stdint.h>\n", card.title);
  for (const Function& function : card.functions) {
    if (function.optional) continue;
    text += fmt::format("\n{}{} {{\n", linkage, c_declaration(function, cuda));
    for (const Argument& argument : function.arguments) {
      text += fmt::format("  (void){};\n", argument.name);
    }
    if (cuda) text += "  (void)stream;\n";
    text += fmt::format("  {}\n}}\n", stub_body(function));
  }
  return text;
}

// What a Python function returns, for its comment. A state is returned by the first function of the
// contract that has one, and handed to the others.
std::string python_results(const Function& function, bool makes_state) {
  std::vector<std::string> names;
  for (const Argument& argument : function.arguments) {
    if (argument.kind == ArgumentKind::output) names.push_back(argument.name);
    if (argument.kind == ArgumentKind::state && makes_state) names.push_back(argument.name);
  }
  if (function.returns == Returns::size) return "int";
  if (function.returns == Returns::handle) return "any object";
  if (names.empty()) return "None";
  return names.size() == 1 ? names[0] : fmt::format("({})", fmt::join(names, ", "));
}

std::string python_template(const TaskCard& card) {
  std::string text =
      fmt::format("\"\"\"{}. See ../PROMPT.md.\"\"\"\n\nimport numpy as np\n", card.title);
  bool state_made = false;
  for (const Function& function : card.functions) {
    if (function.optional || is_sizer(card, function)) continue;
    const bool with_state =
        std::any_of(function.arguments.begin(), function.arguments.end(),
                    [](const Argument& argument) { return argument.kind == ArgumentKind::state; });
    const bool makes_state = with_state && !state_made;
    state_made = state_made || with_state;
    text += fmt::format("\n\n{}  # -> {}\n    raise NotImplementedError\n",
                        python_declaration(function, makes_state),
                        python_results(function, makes_state));
  }
  return text;
}

// JSON and the names of contenders take no odd characters.
std::string plain_name(std::string name) {
  for (char& c : name) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    if (!fits) c = '-';
  }
  return name.substr(0, 40);
}

std::string contender_json(const std::string& name, const TaskCard& card, const std::string& rest) {
  return fmt::format("{{\n  \"name\": \"{}\",\n  \"task\": \"{}\"{}\n}}\n", name, card.id, rest);
}

void write_task(Writer& out, const Task& task, const std::string& name) {
  const TaskCard& card = task.card();
  const fs::path folder = card.id;
  out.write(folder / "PROMPT.md", card.prompt);
  out.write(folder / "cpp" / "solution.cc", c_template(card, "extern \"C\" ", false));
  out.write(folder / "cpp" / "contender.json", contender_json(name + "-cpp", card, ""));
  out.write(folder / "c" / "solution.c", c_template(card, "", false));
  out.write(folder / "c" / "contender.json", contender_json(name + "-c", card, ""));
  out.write(folder / "numpy" / "solution.py", python_template(card));
  out.write(folder / "numpy" / "contender.json", contender_json(name + "-numpy", card, ""));
  if (std::find(card.devices.begin(), card.devices.end(), "cuda") != card.devices.end()) {
    out.write(folder / "cuda" / "solution.cu", c_template(card, "extern \"C\" ", true));
    out.write(folder / "cuda" / "contender.json", contender_json(name + "-cuda", card, ""));
  }
  if (text(card.id + "/adapter/adapter.cc").empty()) return;
  for (const char* file : {"theirs.h", "theirs.cc", "adapter.cc"}) {
    out.write(folder / "adapter" / file,
              std::string(text(fmt::format("{}/adapter/{}", card.id, file))));
  }
  out.write(folder / "adapter" / "contender.json",
            contender_json(name + "-adapter", card,
                           ",\n  \"sources\": [\"theirs.cc\"],\n  \"adapter\": \"adapter.cc\""));
}

std::string readme(const std::vector<const Task*>& tasks, const std::string& name) {
  std::string text = fmt::format(
      "# {}\n\n"
      "One folder per task. `PROMPT.md` is the statement, whole: give it to whoever writes the\n"
      "contender. Beside it lie contenders to start from:\n\n"
      "| folder | what it is |\n|---|---|\n"
      "| `cpp/`, `c/` | functions of the contract, empty: they refuse every call |\n"
      "| `numpy/` | the same as Python functions |\n"
      "| `cuda/` | the same for a GPU, where the task takes one |\n"
      "| `adapter/` | somebody's code under its own names (`theirs.*`), left as it was, and an\n"
      "adapter that maps the contract to it; it passes |\n\n"
      "Judge one, or two against each other:\n\n",
      name);
  for (const Task* task : tasks) {
    const std::string& id = task->card().id;
    const bool adapter = !judge::text(id + "/adapter/adapter.cc").empty();
    const std::string folder = fmt::format("{}/{}/{}", name, id, adapter ? "adapter" : "cpp");
    text += fmt::format("    {}\n", judge_command(folder, id));
  }
  text +=
      "\n`contender.json` may be left out. Its keys: `name`, `task`, `sources` (files to compile;\n"
      "else all at the top of the folder), `library` (a prebuilt .so), `adapter` (one more "
      "source),\n"
      "`functions` (names of the contract -> names in the contender, for functions that take the\n"
      "same arguments under another name), `language` (`cuda` for a library with GPU code), "
      "`lacks`\n"
      "(what it refuses, of the list in the statement), `claims` (sentences that are checked by\n"
      "measurements), `author`.\n"
      "A function called nearly as in the contract, with as many arguments, is found without it.\n";
  return text;
}

}  // namespace

std::vector<fs::path> deploy(const fs::path& folder, const std::vector<const Task*>& tasks) {
  std::error_code error;
  if (fs::exists(folder, error) && (!fs::is_directory(folder) || !fs::is_empty(folder))) {
    throw InvalidArgument(
        fmt::format("deploy: {}: exists and is not an empty folder", folder.string()));
  }
  const std::string name = fs::absolute(folder).lexically_normal().filename().string();
  Writer out(folder);
  for (const Task* task : tasks) write_task(out, *task, plain_name(name));
  out.write("README.md", readme(tasks, name));
  return out.take();
}

}  // namespace touchstone::judge
