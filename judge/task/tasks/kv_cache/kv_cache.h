// The parts of the task: the session that a case describes, and the same session in float64.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::kv_cache {

// Where the script of a family becomes another one: `chunks` of longer prompts, `reuse` of more steps.
inline constexpr int64_t kLongPrompt = 200;
inline constexpr int64_t kManyFrees = 64;

// The shape of a session, as its case names it.
struct Session {
  std::string script;  // which calls are made
  std::string family;  // of which data
  int64_t layers = 1;
  int64_t sequences = 1;
  int64_t kv_heads = 1;
  int64_t group = 1;  // query heads per key-value head
  int64_t head_dim = 1;
  int64_t prompt = 1;  // tokens, at most
  int64_t steps = 0;   // decode steps
  int64_t max_tokens = 1;
  int64_t alive = 2;  // caches at once, in sessions with several
  double value_scale = 1;
  double scale = 0;  // of the scores, where the case names one,
  bool given_scale = false;
  double jump = 0;                 // what step_scores and ramp_scores rise by, or fall
  bool changed_future = false;     // relations: the last prompt token is another one,
  bool changed_neighbors = false;  // all sequences but the first hold something else,
  bool renumbered = false;         // sequence i has the number sequences - 1 - i
  uint64_t seed = 0;

  int64_t query_heads() const { return kv_heads * group; }
};

// The data family that a case of the families `mixed` hides in its seed.
CaseSpec resolve(const CaseSpec& spec);
Session read_session(const CaseSpec& spec);  // InvalidArgument when it is not a case of this task
std::vector<Call> make_calls(const Session& session);

// What a call must have led to.
struct Outcome {
  bool refused = false;
  bool has_value = false;    // the call returns a number,
  int64_t value = 0;         // this one
  int64_t least_value = -1;  // or, where >= 0, at least this one
  Expected out;              // of attend
};

// The cache of one handle: naive, in float64, with what the errors of each token are made of.
class Model {
 public:
  Model(const Tolerance& tolerance, int64_t layers, int64_t sequences, int64_t kv_heads,
        int64_t head_dim, int64_t max_tokens, int64_t bits);

  Outcome apply(const Call& call);
  int64_t stored_bytes() const;  // over all layers and sequences; shared tokens once

 private:
  // Tokens of one sequence in one layer; `origin` tells which tokens are shared after a fork.
  struct Tokens {
    std::vector<double> k, v;            // [length, kv_heads, head_dim]
    std::vector<double> k_norm;          // [length, kv_heads]
    std::vector<double> k_step, v_step;  // half a step of a quantized cache, else 0
    std::vector<int64_t> origin;         // [length]
    int64_t length() const { return static_cast<int64_t>(origin.size()); }
  };

  bool known(int64_t layer, int64_t sequence) const;
  Tokens& at(int64_t layer, int64_t sequence) {
    return tokens_[static_cast<size_t>(layer * sequences_ + sequence)];
  }
  bool append(const Call& call);
  void append_token(Tokens& tokens, const float* k, const float* v);
  bool attend(const Call& call, Expected& out);
  void attend_head(const Tokens& tokens, int64_t seen, int64_t kv_head, const float* q,
                   double scale, Expected& out, size_t at) const;
  void add_stored_error(const Tokens& tokens, int64_t kv_head, const std::vector<double>& weight,
                        double score_scale, Expected& out, size_t place) const;
  bool fork(int64_t parent, int64_t child);
  bool free(int64_t sequence);

  Tolerance tolerance_;
  int64_t layers_, sequences_, kv_heads_, head_dim_, max_tokens_, bits_;
  int64_t next_origin_ = 0;
  std::vector<Tokens> tokens_;
};

// The whole case, call by call.
std::vector<Outcome> expected_outcomes(const Case& asked, const Tolerance& tolerance);

// Keys and values at the fullest moment of a case, all caches together.
int64_t most_stored_bytes(const Case& asked);

// One query token of one attend call.
struct QueryKey {
  int state = 0;
  int64_t layer = 0;
  int64_t sequence = 0;  // as it was before renumbering
  int64_t position = 0;

  friend bool operator<(const QueryKey& a, const QueryKey& b) {
    return std::tie(a.state, a.layer, a.sequence, a.position) <
           std::tie(b.state, b.layer, b.sequence, b.position);
  }
};
struct QueryPlace {
  size_t call = 0;
  int64_t token = 0;  // row of `out`
};
// Where each query of a case is answered. Later answers to the same query win.
std::map<QueryKey, QueryPlace> query_places(const Case& asked, const Session& session);

}  // namespace touchstone::judge::kv_cache
