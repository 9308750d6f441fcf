#!/usr/bin/env bash
# Runs the libFuzzer targets that `make fuzz` has built, one after the other: new inputs go to
# build/fuzz/corpus, findings to build/fuzz/findings, whose inputs are named in the output.
#
#   scripts/fuzz.sh [seconds [target...]]     60 seconds each; tensor_file config tokenizer chat_template
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then targets=(tensor_file config tokenizer chat_template); fi

io=src/io
mkdir -p build/fuzz/findings
failures=0
for target in "${targets[@]}"; do
  case "$target" in
    tensor_file) seeds=("$io/testdata/seeds" "$io"/testdata/hostile/*/) options=() ;;
    config) seeds=("$io/testdata/seeds") options=() ;;
    tokenizer) seeds=("$io/tokenizer/testdata/corpus") options=() ;;
    chat_template)
      seeds=("$io/chat_template/testdata/corpus")
      options=("-dict=$io/chat_template/testdata/jinja.dict")
      ;;
    *)
      echo "fuzz: unknown target '$target'; expected tensor_file, config, tokenizer or chat_template" >&2
      exit 2
      ;;
  esac
  corpus=build/fuzz/corpus/$target
  log=build/fuzz/$target.log
  mkdir -p "$corpus"
  if build/fuzz/fuzz_"$target" -max_total_time="$seconds" -max_len=4096 -timeout=1 -rss_limit_mb=512 \
    -artifact_prefix=build/fuzz/findings/"$target"- -print_final_stats=1 "${options[@]}" "$corpus" \
    "${seeds[@]}" >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "$target: $runs inputs, no finding"
  else
    failures=$((failures + 1))
    echo "$target: FAILED, see $log"
    grep -m 3 -E 'ERROR|SUMMARY|Test unit written' "$log" || tail -n 3 "$log"
  fi
done
[[ $failures -eq 0 ]] || exit 1
