// Options of `touchstone train`, on the command line or in a JSON file: one table of names and
// defaults.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/options.h"
#include "json/json.h"
#include "touchstone/io/model_description.h"
#include "touchstone/train/trainer.h"

namespace touchstone::cli {

class TrainSettings {
 public:
  // --layers, --width, ... of the table.
  void add_options(Options& verb);
  // Values of the file for what no option gave. InvalidArgument names an unknown key.
  void read_config(const std::string& path);

  // InvalidArgument names the setting where a value is none.
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  bool flag(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool given(const std::string& name) const;  // by option or file
  // A line for each group of options that were given and that a run of these parts does not read.
  struct Parts {
    bool from = false;
    bool teacher = false;
    bool ternary = false;
    bool dflash = false;
  };
  std::vector<std::string> unused(const Parts& parts) const;
  // All that can be known to be wrong before the text is read, with the sizes of a new model or
  // without. InvalidArgument.
  void check(bool new_model) const;
  Json json() const;  // all values in use

  train::TrainingOptions training() const;
  // A model from scratch.
  io::ModelDescription description(std::int64_t vocabulary) const;

 private:
  DType compute() const;
  void at_most(const std::string& name, std::int64_t most) const;

  std::map<std::string, std::string> given_;   // by option; "" = not
  std::map<std::string, std::string> values_;  // by file
};

}  // namespace touchstone::cli
