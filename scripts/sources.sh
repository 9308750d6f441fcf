#!/usr/bin/env bash
# Prints the C++ and CUDA sources of the repository, NUL-separated: tracked files and new ones that
# git does not ignore.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  while IFS= read -r -d '' file; do
    # A file deleted but not yet committed is still listed.
    if [[ -e "$file" ]]; then printf '%s\0' "$file"; fi
  done
