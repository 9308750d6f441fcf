// touchstone tokenize: text to token ids and back, and the training of a tokenizer.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/arguments.h"
#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "json/json.h"
#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::vector<std::string> words;  // the text, ids, or files to train on
  bool decode = false;
  bool lines = false;
  bool json = false;
  bool no_special = false;
  bool plain_text = false;
  bool skip_special = false;
  bool bench = false;
  std::int64_t rounds = 7;
  bool train = false;
  std::int64_t vocabulary = 32000;
  std::int64_t min_frequency = 0;
  std::vector<std::string> special;
  std::string output;
};

io::EncodeOptions encode_options(const TokenizeOptions& o) {
  return {.add_special = !o.no_special, .parse_special = !o.plain_text};
}

std::string ids_text(const std::vector<io::Token>& ids, const char* separator) {
  return fmt::format("{}", fmt::join(ids, separator));
}

io::Token parse_id(std::string_view word) {
  io::Token id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error != std::errc() || end != word.data() + word.size() || id < 0) {
    throw InvalidArgument(fmt::format("tokenize: --decode: expected token ids, got '{}'", word));
  }
  return id;
}

// Numbers, apart by anything that is none: "1 2", "1,2", "[1, 2]".
std::vector<io::Token> parse_ids(const std::vector<std::string>& words) {
  std::vector<io::Token> ids;
  for (const std::string& text : words) {
    std::size_t at = 0;
    while ((at = text.find_first_not_of(" ,[]\t\r\n", at)) != std::string::npos) {
      const std::size_t end = std::min(text.find_first_of(" ,[]\t\r\n", at), text.size());
      ids.push_back(parse_id(std::string_view(text).substr(at, end - at)));
      at = end;
    }
  }
  return ids;
}

int encode_one(const io::Tokenizer& tokenizer, const TokenizeOptions& o) {
  const std::string text =
      o.words.empty() ? read_standard_input() : fmt::format("{}", fmt::join(o.words, " "));
  const std::vector<io::Token> ids = tokenizer.encode(text, encode_options(o));
  if (!o.json) {
    print(ids_text(ids, " ") + "\n");
    return kOk;
  }
  Json list = Json::array();
  Json tokens = Json::array();
  for (const io::Token id : ids) {
    list.push_back(id);
    tokens.push_back(tokenizer.id_to_token(id).value_or(""));
  }
  print_json({{"model", tokenizer.model_name()},
              {"vocabulary", tokenizer.size()},
              {"count", ids.size()},
              {"ids", list},
              {"tokens", tokens}});
  return kOk;
}

int decode_one(const io::Tokenizer& tokenizer, const TokenizeOptions& o) {
  std::vector<std::string> words = o.words;
  if (words.empty()) words.push_back(read_standard_input());
  const std::string text = tokenizer.decode(parse_ids(words), {.skip_special = o.skip_special});
  if (o.json) {
    print_json({{"text", text}});
  } else {
    print(text + "\n");
  }
  return kOk;
}

// An array of whole numbers that ids can be: nothing is rounded or wrapped into another id.
std::vector<io::Token> ids_of(const Json& value) {
  std::vector<io::Token> ids;
  for (const double id : value.get<std::vector<double>>()) {
    if (!(id >= 0 && id <= std::numeric_limits<io::Token>::max()) || id != std::floor(id)) {
      throw Json::exception(fmt::format("expected token ids, got {}", id));
    }
    ids.push_back(static_cast<io::Token>(id));
  }
  return ids;
}

// One JSON value per line in, one per line out.
int run_lines(const io::Tokenizer& tokenizer, const TokenizeOptions& o) {
  std::string line;
  std::string out;
  for (std::int64_t number = 1; std::getline(std::cin, line); ++number) {
    // A line without an end may have been cut by an error, which is then what went wrong.
    if (std::cin.eof()) check_standard_input();
    try {
      const Json value = Json::parse(line);
      if (o.decode) {
        const std::string text = tokenizer.decode(ids_of(value), {.skip_special = o.skip_special});
        out += Json(text).dump();
      } else {
        out += '[' + ids_text(tokenizer.encode(value.get<std::string>(), encode_options(o)), ",") +
               ']';
      }
    } catch (const Json::exception& error) {
      throw CorruptData(fmt::format("tokenize: line {}: {}", number, error.what()));
    }
    out += '\n';
    if (out.size() < std::size_t{1} << 16) continue;
    print(out);
    out.clear();
  }
  check_standard_input();
  print(out);
  return kOk;
}

// Encodes a file as a whole, on one thread, with warm caches from the second round on; the median.
int bench(const io::Tokenizer& tokenizer, const TokenizeOptions& o) {
  if (o.words.size() != 1) throw InvalidArgument("tokenize: --bench: expected one file of text");
  const std::string text = read_whole_file(o.words[0]);
  std::vector<double> seconds;
  std::vector<double> cpu;  // what a busy machine does not stretch
  std::vector<io::Token> ids;
  for (std::int64_t round = 0; round < o.rounds; ++round) {
    ids.clear();
    const machine::Stopwatch watch;
    const std::clock_t cpu_start = std::clock();
    tokenizer.encode_to(text, ids, encode_options(o));
    cpu.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
    seconds.push_back(watch.seconds());
  }
  const double first = cpu[0];
  std::sort(seconds.begin(), seconds.end());
  std::sort(cpu.begin(), cpu.end());
  const double median = seconds[seconds.size() / 2];
  const auto bytes = static_cast<double>(text.size());
  if (o.json) {
    print_json({{"command", command_line()},
                {"model", tokenizer.describe()},
                {"bytes", text.size()},
                {"tokens", ids.size()},
                {"first_cpu_seconds", first},
                {"median_seconds", median},
                {"median_cpu_seconds", cpu[cpu.size() / 2]},
                {"mb_per_second", bytes / median / 1e6},
                {"mb_per_cpu_second", bytes / cpu[cpu.size() / 2] / 1e6}});
    return kOk;
  }
  print(
      fmt::format("{}\n{} bytes, {} tokens, median of {}: {:.1f} MB/s, {:.1f} MB per CPU second "
                  "({:.1f} the first time)\n",
                  tokenizer.describe(), text.size(), ids.size(), o.rounds, bytes / median / 1e6,
                  bytes / cpu[cpu.size() / 2] / 1e6, bytes / first / 1e6));
  return kOk;
}

int train(const TokenizeOptions& o) {
  if (o.words.empty()) throw InvalidArgument("tokenize: --train: expected files of text");
  if (o.output.empty()) throw InvalidArgument("tokenize: --train: expected -o FILE");
  std::vector<std::string> texts;
  std::vector<std::string_view> views;
  texts.reserve(o.words.size());
  for (const std::string& path : o.words) {
    texts.push_back(read_whole_file(path));
    views.emplace_back(texts.back());
  }
  const std::string json = io::train_tokenizer(
      views, {.vocabulary = o.vocabulary, .min_frequency = o.min_frequency, .special = o.special});
  io::write_tokenizer(o.output, json);
  log(fmt::format("{}: {}", o.output, io::Tokenizer::from_json(json).describe()));
  return kOk;
}

int tokenize(const TokenizeOptions& o) {
  if (o.train) {
    if (!o.model.empty()) throw InvalidArgument("tokenize: --train makes a model, and takes no -m");
    return train(o);
  }
  if (o.model.empty()) {
    throw InvalidArgument("tokenize: -m: expected a tokenizer.json, a model folder or a GGUF file");
  }
  const io::Tokenizer tokenizer = io::Tokenizer::from_file(o.model);
  if (o.lines) {
    if (!o.words.empty()) throw InvalidArgument("tokenize: --lines reads standard input only");
    return run_lines(tokenizer, o);
  }
  if (o.bench) return bench(tokenizer, o);
  return o.decode ? decode_one(tokenizer, o) : encode_one(tokenizer, o);
}

}  // namespace

void add_tokenize(Options& app, int& exit_code) {
  auto o = std::make_shared<TokenizeOptions>();
  Options* verb = app.add_verb("tokenize", "Encode text to token ids and back; train a tokenizer");
  verb->add_option("-m,--model", o->model, "A tokenizer.json, a model folder or a GGUF file");
  verb->add_option("text", o->words,
                   "The text, or standard input; with --decode ids, with --train files");
  verb->add_flag("--decode", o->decode, "Decode ids to text");
  verb->add_flag("--lines", o->lines,
                 "Standard input has one JSON value per line: a string, or with --decode an array");
  verb->add_flag("--json", o->json, "Print JSON");
  verb->add_flag("--no-special", o->no_special, "Do not add BOS, EOS and the like");
  verb->add_flag("--plain-text", o->plain_text, "Encode special tokens in the text as plain text");
  verb->add_flag("--skip-special", o->skip_special, "With --decode: skip special tokens");
  verb->add_flag("--bench", o->bench, "Time the encoding of a file, on one thread");
  verb->add_option("--rounds", o->rounds, "With --bench: number of repetitions")
      ->check(whole_number(1, 1000));
  verb->add_flag("--train", o->train, "Train byte-level BPE on files of text");
  verb->add_option("--vocab", o->vocabulary, "With --train: vocabulary size")
      ->check(whole_number(256, std::int64_t{1} << 24))
      ->show_default();
  verb->add_option("--min-frequency", o->min_frequency,
                   "With --train: minimum frequency of a merged pair")
      ->check(whole_number(0));
  verb->add_option("--special", o->special, "With --train: special tokens, comma-separated")
      ->split_at(',');
  verb->add_option("-o,--output", o->output, "With --train: the tokenizer.json to write");
  verb->callback([o, &exit_code] { exit_code = tokenize(*o); });
}

}  // namespace touchstone::cli
