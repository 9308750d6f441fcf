#!/usr/bin/env bash
# Compares the program with packages of PyPI: every tests/peers/*_peer.py, in a private environment
# under build/. `make peers-test` calls it after building the program.
#
#   scripts/peers_test.sh [name...]     only these, as in tests/peers/<name>_peer.py
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
  echo "=== $name"
  TOUCHSTONE_PROGRAM="$PWD/build/release/touchstone" "$environment/bin/python" "$script" ||
    failures=$((failures + 1))
done
[[ $failures -eq 0 ]] || { echo "peers: $failures failed" >&2; exit 1; }
