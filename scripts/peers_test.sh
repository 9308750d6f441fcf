#!/usr/bin/env bash
# Compares the program with packages of PyPI: every tests/peers/*_peer.py, in a private environment
# under build/. `make peers-test` calls it after building the program.
#
#   scripts/peers_test.sh [name...]     only these, as in tests/peers/<name>_peer.py
#
# <name>_torch_peer.py need torch (gigabytes) and run by TOUCHSTONE_TORCH_PYTHON, a Python that has it with
# transformers, ctranslate2, xgrammar and the requirements; without it they are skipped, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build/peers
wanted=tests/peers/requirements.txt
if ! cmp -s "$wanted" "$environment/requirements.txt"; then
  echo "peers: installing $(tr '\n' ' ' <"$wanted")" >&2
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$environment/requirements.txt"
fi

failures=0
for script in tests/peers/*_peer.py; do
  name=$(basename "$script" _peer.py)
  if [[ $# -gt 0 && " $* " != *" $name "* ]]; then continue; fi
  python=$environment/bin/python
  if [[ "$name" == *_torch ]]; then
    python=${TOUCHSTONE_TORCH_PYTHON:-}
    if [[ -z "$python" ]]; then
      echo "=== $name SKIPPED: TOUCHSTONE_TORCH_PYTHON names no Python with torch"
      continue
    fi
  fi
  echo "=== $name"
  TOUCHSTONE_PROGRAM="$PWD/build/release/touchstone" "$python" "$script" || failures=$((failures + 1))
done
[[ $failures -eq 0 ]] || { echo "peers: $failures failed" >&2; exit 1; }
