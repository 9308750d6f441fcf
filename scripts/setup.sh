#!/usr/bin/env bash
# Installs the Debian packages that a part of the project needs, and is silent when all are there.
#
#   scripts/setup.sh [group...]
#
#   build   compiler, CMake, the libraries the program links, NumPy for the judge's contenders
#           (the default)
#   test    GoogleTest
#   bench   the CPU peer that benchmarks compare with
#   tools   clang-format, clang-tidy, shellcheck
#   fuzz    clang with libFuzzer, for the preset fuzz
#   cuda    only checks for nvcc: the CUDA toolkit does not come from Debian
#
# Installs as root or through sudo; where it can do neither it names what is missing and fails.
# TOUCHSTONE_SKIP_SETUP=1 skips everything, for machines that got these things in another way.
set -euo pipefail

if [[ "${TOUCHSTONE_SKIP_SETUP:-0}" == 1 ]]; then
  exit 0
fi

say() { printf 'setup: %s\n' "$*" >&2; }

check_cuda() {
  if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    say "no nvcc on PATH or in /usr/local/cuda/bin"
    say "install the CUDA toolkit, 12.8 or newer: https://developer.nvidia.com/cuda-downloads"
    exit 1
  fi
}

# The version that the package clang stands for: 14 in Debian 12, whose lists a fresh machine lacks.
clang_version() {
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.* Depends: clang-\([0-9]*\)$/\1/p')
  echo "${version:-14}"
}

packages=()
if [[ $# -eq 0 ]]; then
  set -- build
fi
for group in "$@"; do
  case "$group" in
    build) packages+=(g++ make cmake ninja-build libhwy-dev libfmt-dev nlohmann-json3-dev libutf8proc-dev
      libpcre2-dev libcli11-dev libseccomp-dev python3-numpy python3-venv) ;;
    test) packages+=(libgtest-dev libgmock-dev) ;;
    # libdnnl-dev does not depend on the OpenCL files that its own CMake package asks for.
    bench) packages+=(libdnnl-dev ocl-icd-opencl-dev opencl-c-headers libopenblas0-pthread) ;;
    tools) packages+=(clang-format clang-tidy shellcheck git) ;;
    fuzz) packages+=(clang "libclang-rt-$(clang_version)-dev") ;;
    cuda) check_cuda ;;
    *)
      say "unknown group '$group'; expected build, test, bench, tools, fuzz or cuda"
      exit 2
      ;;
  esac
done
if [[ ${#packages[@]} -eq 0 ]]; then
  exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is not a Debian-like system, so nothing can be checked or installed here"
  say "needed, by their Debian names: ${packages[*]}"
  say "when they are there, run again with TOUCHSTONE_SKIP_SETUP=1"
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  if [[ "$status" != installed ]]; then
    missing+=("$package")
  fi
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  # Ask for a password only where somebody can answer.
  if sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif [[ -t 0 ]] && command -v sudo >/dev/null; then
    as_root=(sudo)
  else
    say "missing packages: ${missing[*]}"
    say "no right to install them; as root, run:"
    say "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    exit 1
  fi
fi

say "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
    </dev/null >>"$log" 2>&1
}
install() { apt install -y --no-install-recommends "${missing[@]}"; }
# The package lists are refreshed first because a fresh machine has none; a refresh that fails (no
# network, a broken extra source) is no reason to give up while the packages may still be there.
apt update || say "could not refresh the package lists; trying with the old ones"
if ! install; then
  cat "$log" >&2
  say "failed: apt-get install ${missing[*]}"
  exit 1
fi
