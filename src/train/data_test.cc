// Text for training: what is refused, the division without common paragraphs, tokens, windows.
#include "touchstone/train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/refusal.h"
#include "touchstone/core/error.h"

namespace touchstone::train {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using ::testing::HasSubstr;

class TrainData : public ::testing::Test {
 protected:
  TrainData() {
    folder_ = fs::temp_directory_path() /
              ("touchstone_train_data_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  ~TrainData() override { fs::remove_all(folder_); }
  fs::path file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  fs::path folder_;
};

TEST_F(TrainData, BadTextIsRefusedByNameAndPlace) {
  EXPECT_THROW(read_documents(folder_ / "missing.txt"), FileError);
  expect_refusal(folder_.string() + ": no *.jsonl", [&] { read_documents(folder_); });
  expect_refusal((folder_ / "empty.txt").string() + ": no text",
                 [&] { read_documents(file("empty.txt", "")); });
  expect_refusal((folder_ / "binary.txt").string() + ": expected text, got a NUL byte at 3",
                 [&] { read_documents(file("binary.txt", std::string("abc\0d", 5))); });
  expect_refusal((folder_ / "latin.txt").string() + ": expected text in UTF-8",
                 [&] { read_documents(file("latin.txt", "caf\xe9")); });
  expect_refusal((folder_ / "lines.jsonl").string() + ": line 2",
                 [&] { read_documents(file("lines.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}\n")); });
  expect_refusal((folder_ / "none.jsonl").string() + ": no text",
                 [&] { read_documents(file("none.jsonl", "\n{\"text\": \"\"}\n")); });
  EXPECT_EQ(read_documents(file("two.jsonl", "{\"text\": \"a\\nb\"}\n\n{\"text\": \"c\"}")),
            (std::vector<std::string>{"a\nb", "c"}));
}

TEST_F(TrainData, ALineOfItsOwnEndsADocument) {
  const std::string end(kEndOfText);
  const auto documents = [&](const std::string& text) {
    return read_documents(file("text.txt", text));
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(documents("one\n\ntwo\n" + end + "\nthree\n" + end + "\n"),
            (Texts{"one\n\ntwo", "three"}));
  // The last need not be ended; what is empty is no document; line ends of either kind.
  EXPECT_EQ(documents(end + "\n" + end + "\r\none\r\n" + end + "\ntwo\n"), (Texts{"one", "two\n"}));
  EXPECT_EQ(documents("one\n" + end), Texts{"one"});
  // Within a line it is text.
  EXPECT_EQ(documents("the " + end + "\n " + end + "\n"), Texts{"the " + end + "\n " + end + "\n"});
  expect_refusal((folder_ / "text.txt").string() + ": no text", [&] { documents(end + "\n"); });
  // Shards one after another keep their borders.
  EXPECT_EQ(documents("a\n" + end + "\n" + "b\n" + end + "\n"), (Texts{"a", "b"}));
}

TEST_F(TrainData, AFolderOfShardsIsItsDocuments) {
  file("shard-00001.txt", "third\n\n");
  file("shard-00001.jsonl", "{\"document\": 2, \"offset\": 0, \"bytes\": 5}\n");
  file("shard-00000.txt", "first\n\nsecond one\n\n");
  file("shard-00000.jsonl", "{\"offset\": 0, \"bytes\": 5}\n{\"offset\": 7, \"bytes\": 10}\n");
  EXPECT_EQ(read_documents(folder_), (std::vector<std::string>{"first", "second one", "third"}));
  expect_refusal((folder_ / "far.jsonl").string() + ": line 1", [&] {
    file("far.txt", "short");
    read_documents(file("far.jsonl", "{\"offset\": 3, \"bytes\": 3}\n"));
  });
  EXPECT_THROW(read_documents(file("alone.jsonl", "{\"offset\": 0, \"bytes\": 3}\n")), FileError);
}

TEST_F(TrainData, NoParagraphIsInBothParts) {
  const TextSplit split = separate_documents(
      {"One  TWO\nthree\n\nkept here\n\n\nfour", "one two three"}, {"one two  three\n\nother"});
  EXPECT_EQ(split.training, (std::vector<std::string>{"kept here\n\n\nfour"}));
  EXPECT_EQ(split.validation, (std::vector<std::string>{"one two  three\n\nother"}));
  EXPECT_EQ(split.dropped_paragraphs, 2);
  EXPECT_EQ(split.training_paragraphs, 2);
  // Case and white space of other alphabets: U+00C4, U+0416, and a line of U+00A0 between
  // paragraphs.
  const TextSplit letters =
      separate_documents({"\xc3\x84pfel \xd0\x96\n\xc2\xa0\nnew"},
                         {"\xc3\xa4PFEL\xc2\xa0\xe2\x80\x83\xd0\xb6\n\nother"});
  EXPECT_EQ(letters.training, std::vector<std::string>{"new"});
  EXPECT_EQ(letters.dropped_paragraphs, 1);
  expect_refusal("train: every paragraph of the training text is in the validation text",
                 [] { separate_documents({"A b"}, {"a  B"}); });
  expect_refusal("train: the validation text has no paragraph",
                 [] { separate_documents({"A b"}, {" \n"}); });
  expect_refusal("train: validation share", [] { split_documents({"a"}, 1, 1); });
}

TEST_F(TrainData, CommonRunsOfWordsAreCounted) {
  std::string words;
  for (int i = 0; i < 26; ++i) words += "w" + std::to_string(i) + " ";
  const TextSplit split = separate_documents({"start " + words}, {words + "end"});
  // 27 words have 15 runs of 13; the last one ends in a word of its own.
  EXPECT_DOUBLE_EQ(split.common_13_grams, 14.0 / 15);
}

TEST_F(TrainData, ASingleDocumentIsCutAtItsEndBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "paragraph \xc3\xa4 " + std::to_string(i) + "\n\n";
  const TextSplit split = split_documents({text}, 0.1, 1);
  EXPECT_EQ(split.training[0] + split.validation[0], text);
  EXPECT_NEAR(static_cast<double>(split.validation[0].size()),
              0.1 * static_cast<double>(text.size()), 2);
}

TEST_F(TrainData, CharactersAreTokens) {
  const std::string text = "ab \n\xc3\xa4z";
  const std::string_view views[] = {text};
  const io::Tokenizer tokenizer =
      io::Tokenizer::from_json(character_tokenizer(views, {"<|endoftext|>"}));
  EXPECT_EQ(tokenizer.size(), 8U);  // one special, newline, space, a, b, z and two bytes
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  Context context({.threads = 2});
  const std::string documents[] = {"ab", "z \n"};
  const TokenData data = encode_documents(context, tokenizer, documents, 0);
  EXPECT_EQ(data.starts, (std::vector<std::int64_t>{0, 4, 9}));
  EXPECT_EQ(data.tokens[0], 0);
  EXPECT_EQ(data.tokens[3], 0);
  EXPECT_EQ(data.bytes, 5);
  const std::string unknown[] = {"abc"};
  expect_refusal("train: document 0: the vocabulary has no tokens",
                 [&] { encode_documents(context, tokenizer, unknown, 0); });
}

TokenData numbered(std::vector<std::int64_t> lengths) {
  TokenData data;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      data.tokens.push_back(static_cast<std::int32_t>(data.tokens.size()));
    }
    data.starts.push_back(std::ssize(data.tokens));
  }
  data.bytes = data.size();
  return data;
}

TEST_F(TrainData, ShardsGiveTheTokensBack) {
  const TokenData data = numbered({5, 3, 9, 1});
  write_shards(folder_ / "shards", data, 100, "a", 8);
  EXPECT_TRUE(fs::exists(folder_ / "shards" / "tokens-00002.safetensors"));
  const TokenData back = read_shards(folder_ / "shards", 100, "a");
  EXPECT_EQ(back.tokens, data.tokens);
  EXPECT_EQ(back.starts, data.starts);
  EXPECT_EQ(back.bytes, data.bytes);
  EXPECT_THROW(read_shards(folder_ / "shards", 99, "a"), InvalidArgument);
  EXPECT_THROW(read_shards(folder_ / "shards", 100, "b"), InvalidArgument);
  EXPECT_THROW(read_shards(folder_, 100, "a"), FileError);
  write_shards(folder_ / "large", data, 10, "a", 100);  // tokens up to 17 of a vocabulary of 10
  EXPECT_THROW(read_shards(folder_ / "large", 10, "a"), CorruptData);
  // Written over by fewer: what is left of the old ones does not count. One that is missing does.
  write_shards(folder_ / "shards", data, 100, "c", 100);
  EXPECT_EQ(read_shards(folder_ / "shards", 100, "c").tokens, data.tokens);
  write_shards(folder_ / "shards", data, 100, "c", 8);
  fs::remove(folder_ / "shards" / "tokens-00001.safetensors");
  EXPECT_THROW(read_shards(folder_ / "shards", 100, "c"), FileError);
}

TEST_F(TrainData, TheChecksumFollowsTextVocabularyAndEnd) {
  const std::string_view views[] = {"abc"};
  const std::string_view other_views[] = {"abd"};
  const io::Tokenizer tokenizer = io::Tokenizer::from_json(character_tokenizer(views));
  const io::Tokenizer other = io::Tokenizer::from_json(character_tokenizer(other_views));
  const std::string one[] = {"ab"};
  const std::string two[] = {"a", "b"};
  const std::set<std::string> sums = {
      text_checksum(one, tokenizer, -1), text_checksum(one, tokenizer, 0),
      text_checksum(one, other, -1), text_checksum(two, tokenizer, -1)};
  EXPECT_EQ(sums.size(), 4U);
}

TEST_F(TrainData, AnEpochSeesEveryWindowOnce) {
  const TokenData data = numbered({103});
  const BatchSource source(data, 10, 7);
  EXPECT_EQ(source.windows(), 9);
  std::set<std::int64_t> orders;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::set<std::int64_t> starts;
    for (std::int64_t i = 0; i < 9; ++i) {
      const std::int64_t start = source.start_of(epoch * 9 + i);
      EXPECT_EQ(start % 10, source.start_of(epoch * 9) % 10);
      EXPECT_LT(start + 10, 103);
      starts.insert(start);
    }
    EXPECT_EQ(starts.size(), 9U);
    orders.insert(source.start_of(epoch * 9) / 10);
  }
  EXPECT_GT(orders.size(), 1U);
  const HostBatch batch = source.rows(3, 2);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.counted, 20);
  EXPECT_TRUE(batch.offsets.empty());
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
    EXPECT_EQ(batch.positions[i], static_cast<std::int64_t>(i % 10));
  }
  expect_refusal("train: text: expected more than 103", [&] { BatchSource(data, 103, 1); });
}

TEST_F(TrainData, RowsDoNotCrossDocuments) {
  const TokenData data = numbered({4, 7, 2, 8});
  const BatchSource source(data, 6, 1);
  EXPECT_EQ(source.sequential_rows(), 4);
  const HostBatch batch = source.sequential(0, 4);
  EXPECT_EQ(batch.offsets, (std::vector<std::int64_t>{0, 4, 6, 11, 12, 13, 18, 24}));
  EXPECT_EQ(batch.positions, (std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 0,
                                                        0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{1,  2,  3,    -100, 5,    6,    7,    8,
                                                      9,  10, -100, 12,   -100, 14,   15,   16,
                                                      17, 18, 19,   20,   -100, -100, -100, -100}));
  EXPECT_EQ(batch.counted, 17);
}

}  // namespace
}  // namespace touchstone::train
