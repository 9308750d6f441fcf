// The command line as the verbs describe it. Only options.cc knows the parser behind it (CLI11),
// which takes seconds to compile in every file that includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace touchstone::cli {

// Empty when the text is a good value, else what is wrong with it.
using Check = std::function<std::string(const std::string& text)>;

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option* required();
  Option* check(Check check);
  Option* one_of(std::vector<std::string> names);
  Option* show_default();
  Option* split_at(char delimiter);    // one word holds the whole list
  Option* needs(const Option* other);  // a usage error without it
  Option* may_be_empty();              // of a text, which else is refused: an unset variable

 private:
  friend class Options;
  CLI::Option* option_;
  bool may_be_empty_ = false;
};

// One verb, or the program itself with its verbs.
class Options {
 public:
  Options(std::string about, std::string name);  // the program
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  Options* add_verb(const std::string& name, const std::string& about);
  // "--rows", or "path" for one without a name. The value must outlive the Options.
  Option* add_option(const std::string& name, std::string& value, const std::string& help);
  Option* add_option(const std::string& name, std::vector<std::string>& value,
                     const std::string& help);
  Option* add_option(const std::string& name, std::int64_t& value, const std::string& help);
  Option* add_option(const std::string& name, std::uint64_t& value, const std::string& help);
  Option* add_option(const std::string& name, int& value, const std::string& help);
  Option* add_option(const std::string& name, double& value, const std::string& help);
  Option* add_flag(const std::string& name, bool& value, const std::string& help);
  void set_version(const std::string& text);
  void footer(const std::string& text);
  void callback(std::function<void()> body);

  // Reads the command line and runs the callback of the verb in it. The exit code where no verb
  // ran: --help and --version, which print, and a line that is not understood, which is said.
  std::optional<int> parse(int argc, char** argv);

 private:
  explicit Options(CLI::App* app);
  Option* keep(CLI::Option* option);

  std::unique_ptr<CLI::App> owned_;  // of the program only
  CLI::App* app_;
  std::vector<std::unique_ptr<Options>> verbs_;
  std::vector<std::unique_ptr<Option>> options_;
};

}  // namespace touchstone::cli
