#!/usr/bin/env bash
# Runs the libFuzzer targets that `make fuzz` has built, one after the other: new inputs go to
# build/fuzz/corpus, findings to build/fuzz/findings, whose inputs are named in the output.
#
#   scripts/fuzz.sh [seconds [target...]]     60 seconds each; tensor_file config tokenizer chat_template
#
# FUZZ_SEED chooses the mutations, 0 others in every run.
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
  limits=(-max_len=4096 -timeout=1 -rss_limit_mb=512)
  status=0
  build/fuzz/fuzz_"$target" -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" "${limits[@]}" \
    -artifact_prefix=build/fuzz/findings/"$target"- -print_final_stats=1 "${options[@]}" "$corpus" \
    "${seeds[@]}" >"$log" 2>&1 || status=$?
  # A second of wall time also passes while the machine does other things: only an input that takes it
  # again is slow.
  slow=$(sed -n 's/.*Test unit written to \(.*-timeout-.*\)$/\1/p' "$log")
  if [[ -n "$slow" ]] && build/fuzz/fuzz_"$target" "${limits[@]}" "$slow" >>"$log" 2>&1; then
    echo "$target: stopped early by an input that took over a second once, and not again: $slow"
  elif [[ $status -eq 0 ]]; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "$target: $runs inputs, no finding"
  else
    failures=$((failures + 1))
    echo "$target: FAILED, see $log"
    grep -m 3 -E 'ERROR|SUMMARY|Test unit written' "$log" || tail -n 3 "$log"
  fi
done
[[ $failures -eq 0 ]] || exit 1
