// What transformers answers for small tables (tests/peers/beam_torch_peer.py --golden).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "decode/beam/beam_test_support.h"
#include "json/json.h"

namespace touchstone::decode {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(BeamGolden, TransformersGivesTheSameTexts) {
  std::ifstream file(TOUCHSTONE_BEAM_TESTDATA "/hf_golden.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Json cases = Json::parse(text);
  ASSERT_EQ(cases.size(), 24U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Json& c = cases[i];
    const auto vocabulary = c.at("vocabulary").get<std::int64_t>();
    const auto units = c.at("units").get<std::vector<double>>();
    const auto next = c.at("next").get<Tokens>();
    const auto width = static_cast<std::size_t>(vocabulary);
    ToyScorer scorer(vocabulary, 64, [&](const Tokens& path, std::span<double> logits) {
      std::size_t state = 0;
      for (const std::int32_t token : path) {
        state = static_cast<std::size_t>(next[state * width + static_cast<std::size_t>(token)]);
      }
      for (std::size_t v = 0; v < width; ++v) logits[v] = units[state * width + v] * 0x1p-14;
    });
    const Json& stopping = c.at("early_stopping");
    BeamRequest r;
    r.request.prompt = c.at("prompt").get<Tokens>();
    r.request.stop.max_tokens = c.at("max_tokens").get<std::int64_t>();
    r.request.stop.min_tokens = c.at("min_tokens").get<std::int64_t>();
    r.request.stop.include_stop = true;
    r.options.beams = static_cast<std::int32_t>(c.at("beams").get<std::int64_t>());
    r.options.eos = c.at("eos").get<Tokens>();
    r.options.length_penalty = c.at("length_penalty").get<double>();
    r.options.dialect = BeamDialect::hf;
    r.options.early_stopping = stopping.is_string()   ? EarlyStopping::never
                               : stopping.get<bool>() ? EarlyStopping::yes
                                                      : EarlyStopping::no;
    const auto got = search(scorer, {r}).hypotheses.at(0);
    const Json& texts = c.at("texts");
    const auto scores = c.at("scores").get<std::vector<double>>();
    ASSERT_EQ(got.size(), texts.size());
    for (std::size_t b = 0; b < got.size(); ++b) {
      EXPECT_EQ(got[b].tokens, texts[b].get<Tokens>());
      EXPECT_NEAR(got[b].score, scores[b], 1e-5 * std::max(1.0, std::abs(scores[b])));
    }
  }
}

}  // namespace
}  // namespace touchstone::decode
