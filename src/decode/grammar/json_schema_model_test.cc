// JSON of a random model, by the way that `touchstone generate --json-schema` takes: tokenizer, grammar,
// scheduler, sampling. Whatever the model would rather say, every text parses and is valid.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "decode/grammar/json_test_support.h"
#include "model/model_test_support.h"
#include "touchstone/decode/grammar.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::decode {
namespace {

constexpr std::int64_t kRuns = 1000;
constexpr std::int64_t kVocabulary = 512;

// Merges that cross the borders of JSON: quotes with names, braces with what follows.
io::Tokenizer json_tokenizer(const Json& cases) {
  std::string text;
  for (const Json& one : cases) text += one["schema"].dump() + '\n' + one["schema"].dump(1) + '\n';
  const std::string_view texts[] = {text};
  return io::Tokenizer::from_json(
      io::train_tokenizer(texts, {.vocabulary = kVocabulary, .special = {"<s>", "</s>"}}));
}

// All kinds of controls. A random model has no reason to end a text: what closes strings, arrays,
// objects, lists ("null") and patterns is made likelier, and repetition is penalized.
Request json_request(std::int64_t run, const io::Tokenizer& tokenizer, std::int32_t end) {
  constexpr std::pair<double, float> kTemperatures[] = {
      {0, 8}, {0.3, 4}, {0.8, 2}, {1, 3}, {1.5, 5}};
  const auto [temperature, bias] = kTemperatures[run % 5];
  Request request{
      .prompt = tokenizer.encode("Answer " + std::to_string(run * run % 997) + " in JSON:\n"),
      .sampling = {.temperature = temperature,
                   .top_k = run % 3 == 1 ? 40 : 0,
                   .top_p = run % 4 == 2 ? 0.9 : 1,
                   .min_p = run % 7 == 3 ? 0.02 : 0,
                   .repetition_penalty = run % 6 == 4 ? 1.1 : 1,
                   .frequency_penalty = temperature < 0.5 ? 0.5 : 0.1,
                   .seed = run},
      .stop = {.max_tokens = 700}};
  for (const char* const text : {"}", "]", "n", "a", "b", "(", "\\"}) {
    request.sampling.bias.emplace_back(tokenizer.token_to_id(text).value(), bias);
  }
  request.sampling.bias.emplace_back(tokenizer.token_to_id("\"").value(), bias + 2);
  request.sampling.bias.emplace_back(end, bias + 2);
  // None of these can occur: JSON has no control characters but white space.
  if (run % 2 == 1) request.stop.strings = {"}\x01", "\x02"};
  if (run % 5 == 3) request.stop.tokens = {tokenizer.token_to_id("<s>").value()};
  if (run % 11 == 5) request.samples = 2;
  return request;
}

struct JsonRuns {
  std::int64_t texts = 0;
  std::int64_t bytes = 0;
  std::map<std::string, std::int64_t> of_schema{};
  std::int64_t accepted = 0;  // nodes of drafts
};

class JsonOfAModel : public testing::Test {
 protected:
  JsonOfAModel() : cases_(schemas()), tokenizer_(json_tokenizer(cases_)), folder_("json") {
    const Json golden = model::test::read_json(std::filesystem::path(TOUCHSTONE_MODEL_TESTDATA) /
                                               "qwen2.json");  // of two layers
    folder_.write(golden["config"], golden["tensors"]);
  }

  // Runs [first, first + count), with drafts where `source` is given.
  void run(std::int64_t first, std::int64_t count, std::shared_ptr<DraftSource> source,
           JsonRuns& done) {
    Context context({.threads = 1});
    model::Model model(context, io::ModelFile::open(folder_.path()),
                       {.max_length = 800, .sequences = 32, .max_rows = 128});
    const std::int32_t end = tokenizer_.token_to_id("</s>").value();
    Scheduler scheduler(model, {.max_rows = 128,
                                .max_running = 32,
                                .eos_tokens = {end},
                                .tokenizer = &tokenizer_,
                                .speculation = {.source = std::move(source), .adaptive = false}});
    const std::int32_t ends[] = {end};
    const GrammarVocabulary vocabulary(tokenizer_.token_bytes(kVocabulary), ends);
    constexpr JsonWhitespace kSpaces[] = {JsonWhitespace::none, JsonWhitespace::single,
                                          JsonWhitespace::any};
    std::map<std::size_t, std::shared_ptr<const TokenConstraint>> constraints;
    std::vector<std::pair<std::size_t, RequestId>> sent;
    for (std::int64_t i = first; i < first + count; ++i) {
      const auto kind = static_cast<std::size_t>(i) % (3 * cases_.size());
      auto& constraint = constraints[kind];
      if (!constraint) {
        const Grammar grammar = Grammar::from_json_schema(
            cases_[kind / 3]["schema"].dump(), {.whitespace = kSpaces[kind % 3], .max_digits = 6});
        constraint = std::make_shared<GrammarConstraint>(grammar, vocabulary);
      }
      Request request = json_request(i, tokenizer_, end);
      request.constraint = constraint;
      sent.emplace_back(kind / 3, scheduler.submit(std::move(request)));
    }
    while (scheduler.step(context)) {
    }
    for (const auto& [kind, id] : sent) {
      for (const Completion& answer : scheduler.take(id)) {
        expect_valid(cases_[kind], answer);
        if (HasFatalFailure()) return;
        ++done.texts;
        done.bytes += std::ssize(answer.text);
        ++done.of_schema[cases_[kind]["name"].get<std::string>()];
      }
    }
    for (const std::int64_t nodes : scheduler.speculation().accepted) done.accepted += nodes;
  }

  static void expect_valid(const Json& one, const Completion& answer) {
    SCOPED_TRACE(one["name"].get<std::string>() + ": " + answer.text.substr(0, 400));
    ASSERT_TRUE(answer.finish == FinishReason::eos || answer.finish == FinishReason::stop)
        << name_of(answer.finish) << " after " << answer.tokens.size() << " tokens";
    ASSERT_EQ(answer.stop_index, -1);
    Json value;
    ASSERT_NO_THROW(value = Json::parse(answer.text));
    const Json& schema = one["schema"];
    ASSERT_TRUE(Validator(schema).valid(schema, value));
  }

  Json cases_;
  io::Tokenizer tokenizer_;
  model::test::ModelFolder folder_;
};

TEST_F(JsonOfAModel, AlwaysParsesAndIsValid) {
  JsonRuns done;
  run(0, kRuns * 3 / 4, nullptr, done);
  if (HasFatalFailure()) return;
  // With drafts, masked node by node.
  run(kRuns * 3 / 4, kRuns / 4, ngram_source({.min_match = 1, .shared = true}), done);
  if (HasFatalFailure()) return;
  EXPECT_GE(done.texts, kRuns);
  EXPECT_EQ(done.of_schema.size(), cases_.size());
  EXPECT_GT(done.accepted, 100);
  RecordProperty("texts", static_cast<int>(done.texts));
  RecordProperty("bytes", static_cast<int>(done.bytes));
}

}  // namespace
}  // namespace touchstone::decode
