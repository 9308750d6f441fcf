#!/usr/bin/env bash
# Compares the program with packages of PyPI: every tests/peers/*_peer.py, in a private environment
# under build/. `make peers-test` calls it after building the program.
#
#   scripts/peers_test.sh [name...]     only these, as in tests/peers/<name>_peer.py
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
  echo "=== $name"
  # PyTorch takes 6 GB: an environment of its own, made when the first such script runs.
  environment=build/peers requirements=tests/peers/requirements.txt
  if [[ $name == *_torch ]]; then
    environment=build/peers-torch requirements=tests/peers/requirements-torch.txt
  fi
  install "$environment" "$requirements"
  TOUCHSTONE_PROGRAM="$PWD/build/release/touchstone" "$environment/bin/python" "$script" ||
    failures=$((failures + 1))
done
[[ $failures -eq 0 ]] || { echo "peers: $failures failed" >&2; exit 1; }
