#!/usr/bin/env bash
# What each choice of ternary training is worth: trains the same model with one thing changed at a time,
# three seeds each, and prints the best validation loss of every run, their mean, and its ratio to the
# full-precision model's.
#
#   scripts/ternary_ablation.sh PROGRAM TEXT FOLDER [option of touchstone train...]
#
#   scripts/ternary_ablation.sh build/cuda/touchstone text.txt /tmp/ablation --device cuda --compute bf16 --rows 64 --steps 500
#
# JOBS runs at once (default 1), SEEDS (default "1 2 3"), ONLY: a regular expression of variants (default all; those with
# a parent need "full precision"). Runs whose report is in FOLDER are not repeated; a table of what there is is printed at
# the end, also when it is interrupted. An option of a variant comes before the same one of the command line.
set -euo pipefail
program=$1 text=$2 folder=$3
shift 3
seeds=${SEEDS:-1 2 3}
mkdir -p "$folder"

# NAME|options; @parent stands for the folder of the full-precision run of the same seed, @twice for twice the steps: a model
# with a parent has been trained on that many.
variants=(
  "full precision|"
  "group 128, mean|--ternary"
  "group 32|--ternary --group 32"
  "group 64|--ternary --group 64"
  "one scale per row|--ternary --group row"
  "one scale per tensor|--ternary --group tensor"
  "scale absmax|--ternary --scale absmax"
  "scale least squares|--ternary --scale least_squares"
  "schedule two_phase|--ternary --schedule two_phase"
  "schedule constant|--ternary --schedule constant"
  "schedule linear|--ternary --schedule linear"
  "learning rate 3e-4|--ternary --learning-rate 3e-4"
  "learning rate 1e-3|--ternary --learning-rate 1e-3"
  "learning rate 1e-2|--ternary --learning-rate 1e-2"
  "learning rate 3e-2|--ternary --learning-rate 3e-2"
  "learning rate 1e-1|--ternary --learning-rate 1e-1"
  "twice the steps|--ternary --steps @twice"
  "from a trained parent|--ternary --from @parent"
  "from a parent, with it as teacher|--ternary --from @parent --teacher @parent"
  "from scratch, with a teacher|--ternary --teacher @parent"
)

report_of() { echo "$folder/$(echo "$1" | tr -c 'a-z0-9\n' _)-$2.json"; }
loss_of() { sed -n 's/.*"best_validation_loss": \([0-9.]*\).*/\1/p' "$1" 2>/dev/null || true; }

# The common options but for those that the variant has itself.
rest_of() {
  local options=" $1 " kept=() skip=0 word
  for word in $extra; do
    if [ "$skip" = 1 ] && [[ $word != --* ]]; then continue; fi
    skip=0
    [[ $word == --* && $options == *" $word "* ]] && skip=1 && continue
    kept+=("$word")
  done
  echo "${kept[*]}"
}

table() {
  local name base="" mean losses loss variant seed
  printf '%-36s %-26s %8s %8s\n' "variant" "loss by seed" "mean" "ratio"
  for variant in "${variants[@]}"; do
    name=${variant%%|*}
    losses=""
    for seed in $seeds; do
      loss=$(loss_of "$(report_of "$name" "$seed")")
      losses+="${loss:+$(printf '%.4f' "$loss") }"
    done
    [ -n "$losses" ] || continue
    [ "$(wc -w <<<"$losses")" = "$(wc -w <<<"$seeds")" ] || losses+="(others missing) "
    mean=$(echo "$losses" | awk '{ for (i = 1; i <= NF && $i + 0 > 0; ++i) s += $i; printf "%.4f", s / (i - 1) }')
    [ -n "$base" ] || base=$mean  # full precision, or else the first
    printf '%-36s %-26s %8s %8s\n' "$name" "$losses" "$mean" \
      "$(awk -v a="$mean" -v b="$base" 'BEGIN { printf "%.3f", a / b }')"
  done
}
trap table EXIT

# Parents first: others start from them.
run_all() {
  local variant name options seed report
  for variant in "$@"; do
    name=${variant%%|*}
    [[ $name =~ ${ONLY:-} ]] || continue
    for seed in $seeds; do
      report=$(report_of "$name" "$seed")
      [ -n "$(loss_of "$report")" ] && continue
      options=${variant#*|}
      options=${options//@parent/$folder/full-$seed}
      options=${options//@twice/$twice}
      out="${report%.json}"
      [ "$name" = "full precision" ] && out="$folder/full-$seed"
      rm -rf "$out"
      echo "'$program' train --text '$text' --out '$out' --json '$report' --seed $seed --samples 0 $options $(rest_of "$options") >'$out.log' 2>&1 || true"
    done
  done | xargs -r -d '\n' -P "${JOBS:-1}" -n 1 bash -c
}
extra="$*"
steps=$(sed -n 's/.*--steps \([0-9]*\).*/\1/p' <<<"$extra")
twice=$((2 * ${steps:-1000}))
run_all "${variants[0]}"
run_all "${variants[@]:1}"
