// Ids and texts as PyPI `tokenizers` gives them for small tokenizers of every kind, and the merges of
// its trainer. tests/peers/make_tokenizer_golden.py writes the file.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "json/json.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::io {
namespace {

struct Golden {
  std::map<std::string, Json> models;
  std::vector<Json> cases;
  std::vector<Json> training;
};

const Golden& golden() {
  static const Golden all = [] {
    Golden read;
    std::ifstream file(TOUCHSTONE_TOKENIZER_TESTDATA "/golden.json");
    for (std::string line; std::getline(file, line);) {
      Json value = Json::parse(line);
      if (value.contains("json")) {
        read.models.emplace(value["model"].get<std::string>(), value["json"]);
      } else {
        (value.contains("train") ? read.training : read.cases).push_back(std::move(value));
      }
    }
    return read;
  }();
  return all;
}

Tokenizer tokenizer_of(const Json& item) {
  Json file = item["file"];
  file["model"] = golden().models.at(item["model"].get<std::string>());
  return Tokenizer::from_json(file.dump(), item["name"].get<std::string>());
}

TEST(TokenizerGolden, HasCasesOfEveryKind) {
  EXPECT_EQ(golden().models.size(), 8U);
  EXPECT_EQ(golden().cases.size(), 32U);
  EXPECT_EQ(golden().training.size(), 3U);
}

TEST(TokenizerGolden, IdsAndTextsAreThoseOfTheReference) {
  for (const Json& item : golden().cases) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(item);
    std::vector<Token> last;
    for (std::size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["texts"][i].get<std::string>();
      const auto ids = item["ids"][i].get<std::vector<Token>>();
      EXPECT_EQ(tokenizer.encode(text), ids) << text;
      EXPECT_EQ(tokenizer.decode(ids), item["decoded"][i].get<std::string>()) << text;
      last = ids;
    }
    EXPECT_EQ(tokenizer.decode(last, {.skip_special = true}), item["skipped"].get<std::string>());
  }
}

// A second time the words come out of the cache.
TEST(TokenizerGolden, CachedWordsAreTheSame) {
  for (const Json& item : golden().cases) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(item);
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < item["texts"].size(); ++i) {
        const auto text = item["texts"][i].get<std::string>();
        EXPECT_EQ(tokenizer.encode(text), item["ids"][i].get<std::vector<Token>>()) << text;
      }
    }
  }
}

TEST(TokenizerGolden, StreamsGiveTheWholeText) {
  for (const Json& item : golden().cases) {
    const auto name = item["name"].get<std::string>();
    if (!name.starts_with("gpt2") && name != "llama3" && name != "llama2" && name != "bert")
      continue;
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = tokenizer_of(item);
    for (std::size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["decoded"][i].get<std::string>();
      if (text.find("\xef\xbf\xbd") != std::string::npos) continue;
      TokenStream stream(tokenizer);
      std::string joined;
      for (const Token id : item["ids"][i].get<std::vector<Token>>()) joined += stream.next(id);
      EXPECT_EQ(joined + stream.finish(), text);
    }
  }
}

TEST(TokenizerGolden, TrainerMergesWhatTheReferenceMerges) {
  for (const Json& item : golden().training) {
    SCOPED_TRACE(item["train"].get<std::string>());
    const auto text = item["text"].get<std::string>();
    const std::string_view views[] = {text};
    const std::string json = train_tokenizer(views, {.vocabulary = 400, .special = {"<s>"}});
    EXPECT_EQ(Json::parse(json)["model"]["merges"], item["merges"]);
    const Tokenizer tokenizer = Tokenizer::from_json(json);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_EQ(tokenizer.token_to_id("<s>"), 0);
    EXPECT_TRUE(tokenizer.is_special(0));
  }
}

}  // namespace
}  // namespace touchstone::io
