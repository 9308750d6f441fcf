#!/usr/bin/env bash
# Compares the program with packages of PyPI: every tests/peers/*_peer.py, in a private environment
# under build/. `make peers-test` calls it after building the program.
#
#   scripts/peers_test.sh [name...]     only these, as in tests/peers/<name>_peer.py
#
# <name>_torch_peer.py need PyTorch (6 GB): an environment of its own, made when the first of them runs,
# or the Python that TOUCHSTONE_TORCH_PYTHON names; with TOUCHSTONE_TORCH_PYTHON=none they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# install FOLDER REQUIREMENTS
install() {
  cmp -s "$2" "$1/requirements.txt" && return
  echo "peers: installing $(tr '\n' ' ' <"$2")" >&2
  python3 -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2"
  cp "$2" "$1/requirements.txt"
}

failures=0
for script in tests/peers/*_peer.py; do
  name=$(basename "$script" _peer.py)
  if [[ $# -gt 0 && " $* " != *" $name "* ]]; then continue; fi
  python=build/peers/bin/python
  if [[ "$name" != *_torch ]]; then
    install build/peers tests/peers/requirements.txt
  elif [[ "${TOUCHSTONE_TORCH_PYTHON:-}" == none ]]; then
    echo "=== $name SKIPPED: TOUCHSTONE_TORCH_PYTHON=none"
    continue
  elif [[ -n "${TOUCHSTONE_TORCH_PYTHON:-}" ]]; then
    python=$TOUCHSTONE_TORCH_PYTHON
  else
    install build/peers-torch tests/peers/requirements-torch.txt
    python=build/peers-torch/bin/python
  fi
  echo "=== $name"
  TOUCHSTONE_PROGRAM="$PWD/build/release/touchstone" "$python" "$script" || failures=$((failures + 1))
done
[[ $failures -eq 0 ]] || { echo "peers: $failures failed" >&2; exit 1; }
