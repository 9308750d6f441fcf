// Beam search over a model of four words. The second part is the example in docs/beam_search.md,
// word for word.
#include <touchstone/touchstone.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <vector>

using namespace touchstone;

// A model is anything that answers rows of tokens with logits; this one reads the last token only.
class Words : public decode::Scorer {
 public:
  const decode::ScorerShape& shape() const override { return shape_; }
  decode::ScorerSequence create() override {
    return sequences_[next_] = 0, decode::ScorerSequence{next_++};
  }
  decode::ScorerSequence fork(decode::ScorerSequence s) override {
    sequences_[next_] = sequences_.at(s.id);
    return {next_++};
  }
  void truncate(decode::ScorerSequence s, std::int64_t length) override {
    sequences_.at(s.id) = length;
  }
  void release(decode::ScorerSequence s) override { sequences_.erase(s.id); }
  std::int64_t length(decode::ScorerSequence s) const override { return sequences_.at(s.id); }
  void score(Context&, const decode::ScoreArgs& args) override {
    // Probabilities of <end>, "the", "cat", "sat" after each of them.
    constexpr double kAfter[4][4] = {
        {.1, .7, .1, .1}, {.05, .05, .8, .1}, {.3, .1, .1, .5}, {.6, .3, .05, .05}};
    auto* to = static_cast<float*>(args.logits.data);
    for (const std::int32_t row : args.logit_rows) {
      for (const double p : kAfter[args.rows[static_cast<std::size_t>(row)].token]) {
        *to++ = static_cast<float>(std::log(p));
      }
    }
  }
  void keep(std::span<const decode::KeptRows> kept) override {
    for (const auto& rows : kept) sequences_.at(rows.sequence.id) += std::ssize(rows.rows);
  }

 private:
  decode::ScorerShape shape_{.vocabulary = 4, .max_length = 32};
  std::map<std::int64_t, std::int64_t> sequences_;  // their lengths
  std::int64_t next_ = 0;
};

// [snippet]
int main() {
  const char* const names[] = {"<end>", "the", "cat", "sat"};
  Context context;
  Words model;
  decode::BeamRequest request;
  request.request.prompt = {1};  // "the"
  request.request.stop.max_tokens = 6;
  request.options = {.beams = 3, .length_penalty = 1, .eos = {0}};
  const decode::BeamResults found = decode::beam_search(context, model, {&request, 1});
  for (const decode::BeamHypothesis& h : found.hypotheses[0]) {
    std::cout << h.score << ' ' << name_of(h.reason) << ": the";
    for (const std::int32_t token : h.tokens) std::cout << ' ' << names[token];
    std::cout << '\n';
  }
}
// [snippet]
