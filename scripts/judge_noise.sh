#!/usr/bin/env bash
# How well the judge tells times apart on this machine: the same code against itself, and against a
# copy that does 5 % of its work twice.
#
#   scripts/judge_noise.sh [sessions]      20 by default; some seconds each
#   TOUCHSTONE=path scripts/judge_noise.sh  with another build of the program
#
# Prints one line per session and the two counts that matter. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sessions=${1:-20}
program=${TOUCHSTONE:-build/release/touchstone}
naive=contenders/layer_norm_backward/naive/layer_norm.cc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/same" "$work/twin" "$work/slow"
cp "$naive" "$work/same"
cp "$naive" "$work/twin"
# The rows of the first twentieth are computed again, into scratch.
sed -e 's/layer_norm_forward(/plain_forward(/; s/layer_norm_backward(/plain_backward(/' "$naive" \
  >"$work/slow/layer_norm.cc"
cat >>"$work/slow/layer_norm.cc" <<'CODE'

#include <vector>

static std::vector<float> scratch;
static std::vector<char> scratch_cache;

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  const int64_t part = rows / 20;
  scratch.resize(static_cast<size_t>((part + 2) * cols));
  scratch_cache.resize(static_cast<size_t>(layer_norm_cache_bytes(part, cols)));
  plain_forward(part, cols, eps, x, gamma, beta, scratch.data(), scratch_cache.data());
  return plain_forward(rows, cols, eps, x, gamma, beta, y, cache);
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const int64_t part = rows / 20;
  scratch.resize(static_cast<size_t>((part + 2) * cols));
  float* sums = scratch.data() + part * cols;
  plain_backward(part, cols, eps, dy, x, gamma, scratch_cache.data(), scratch.data(), sums,
                 sums + cols);
  return plain_backward(rows, cols, eps, dy, x, gamma, cache, dx, dgamma, dbeta);
}
CODE

# The geometric mean over shapes of the first contender's time over the second's, with its interval.
ratio() {
  "$program" duel "$1" "$2" --task layer_norm_backward --timing-only --json "$work/r.json" >/dev/null
  /usr/bin/python3 - "$work/r.json" <<'PYTHON'
import json, math, sys
record = json.load(open(sys.argv[1]))["records"][1]
if record["speeds_withheld"]:
    print("withheld 0 0 0")
    sys.exit()
logs = [[math.log(r[k]) for k in ("value", "low", "high")]
        for s in record["speeds"] for r in s["ratio_to"].values()]
n = len(logs)
value = sum(l[0] for l in logs) / n
low = value - math.sqrt(sum((l[0] - l[1]) ** 2 for l in logs)) / n
high = value + math.sqrt(sum((l[2] - l[0]) ** 2 for l in logs)) / n
print("given", *(f"{math.exp(x):.4f}" for x in (value, low, high)))
PYTHON
}

inside=0
found=0
given=0
for ((i = 1; i <= sessions; ++i)); do
  read -r state same low high < <(ratio "$work/same" "$work/twin")
  printf '%3d  same code  %-8s %s (%s to %s)\n' "$i" "$state" "$same" "$low" "$high"
  if [[ $state == given ]]; then
    given=$((given + 1))
    if awk "BEGIN { exit !($same > 0.98 && $same < 1.02) }"; then inside=$((inside + 1)); fi
  fi
  read -r state slow low high < <(ratio "$work/same" "$work/slow")
  printf '%3d  5 %% slower %-8s %s (%s to %s)\n' "$i" "$state" "$slow" "$low" "$high"
  if [[ $state == given ]] && awk "BEGIN { exit !($low > 1.0) }"; then found=$((found + 1)); fi
done
printf 'same code within 2 %%: %d of %d sessions whose speeds were given\n' "$inside" "$given"
printf 'the slow copy was found in %d of %d\n' "$found" "$sessions"
