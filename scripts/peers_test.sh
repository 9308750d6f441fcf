#!/usr/bin/env bash
# Compares the program with packages of PyPI: every tests/peers/*_peer.py, in a private environment
# under build/. `make peers-test` calls it after building the program.
#
#   scripts/peers_test.sh [name...]     only these, as in tests/peers/<name>_peer.py
#
# <name>_torch_peer.py need PyTorch (6 GB): an environment of its own, made when the first of them runs,
# or the Python that TOUCHSTONE_TORCH_PYTHON names; with TOUCHSTONE_TORCH_PYTHON=none they are skipped.
# They come last, and an environment that cannot be made fails its peers, not the others.
set -euo pipefail
cd "$(dirname "$0")/.."

# install FOLDER REQUIREMENTS
install() {
  cmp -s "$2" "$1/requirements.txt" && return
  echo "peers: installing $(tr '\n' ' ' <"$2")" >&2
  python3 -m venv "$1" &&
    "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2" &&
    cp "$2" "$1/requirements.txt"
}

# Every peer ends with a line of what it compared; the summary repeats it.
mkdir -p build/peers
summary=()
failures=0
scripts=()
torch_scripts=()
for script in tests/peers/*_peer.py; do
  if [[ $script == *_torch_peer.py ]]; then torch_scripts+=("$script"); else scripts+=("$script"); fi
done
for script in "${scripts[@]}" "${torch_scripts[@]}"; do
  name=$(basename "$script" _peer.py)
  if [[ $# -gt 0 && " $* " != *" $name "* ]]; then continue; fi
  python=build/peers/bin/python
  installed=yes
  if [[ "$name" != *_torch ]]; then
    install build/peers tests/peers/requirements.txt || installed=no
  elif [[ "${TOUCHSTONE_TORCH_PYTHON:-}" == none ]]; then
    summary+=("skipped $name: TOUCHSTONE_TORCH_PYTHON=none")
    continue
  elif [[ -n "${TOUCHSTONE_TORCH_PYTHON:-}" ]]; then
    python=$TOUCHSTONE_TORCH_PYTHON
  else
    install build/peers-torch tests/peers/requirements-torch.txt || installed=no
    python=build/peers-torch/bin/python
  fi
  echo "=== $name"
  if [[ $installed == no ]]; then
    failures=$((failures + 1))
    summary+=("FAILED  $name: its packages could not be installed")
    continue
  fi
  started=$SECONDS
  result=equal
  TOUCHSTONE_PROGRAM="$PWD/build/release/touchstone" "$python" -u "$script" | tee build/peers/last.log || result=FAILED
  [[ $result == equal ]] || failures=$((failures + 1))
  last=$(tail -n 1 build/peers/last.log)
  if [[ $result == equal && $last == SKIPPED* ]]; then result=skipped; fi
  summary+=("$(printf '%-7s %-22s %4d s  %s' $result "$name" $((SECONDS - started)) "$last")")
done
[[ ${#summary[@]} -gt 0 ]] || { echo "peers: no peer is named $*" >&2; exit 2; }
echo "=== summary"
printf '%s\n' "${summary[@]}"
equal=$(printf '%s\n' "${summary[@]}" | grep -c '^equal' || true)
echo "peers: ${#summary[@]} in all, $equal equal, $failures failed, $((${#summary[@]} - equal - failures)) skipped"
[[ $failures -eq 0 ]]
