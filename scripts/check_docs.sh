#!/usr/bin/env bash
# Checks the documentation: relative links, anchors and paths resolve, operator pages stay short, every
# number of the README's table "Measured" stands on the page it links to.
set -euo pipefail
cd "$(dirname "$0")/.."

failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

documents() { find . -name build -prune -o -name .git -prune -o -name '*.md' -print | sed 's|^./||'; }

# GitHub's anchor of each heading of a document.
anchors() {
  awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ +/, ""); print tolower($0) }' "$1" |
    sed -E 's/`//g; s/[^a-z0-9 _-]//g; s/ /-/g'
}

check_links() {
  local document target file anchor
  while read -r document; do
    while read -r target; do
      case "$target" in http*://* | mailto:*) continue ;; esac
      file="${target%%#*}"
      anchor=""
      [[ "$target" == *'#'* ]] && anchor="${target#*#}"
      if [ -z "$file" ]; then file="$document"; else file="$(dirname "$document")/$file"; fi
      if [ ! -e "$file" ]; then
        fail "$document: no such file: $target"
      elif [ -n "$anchor" ] && ! anchors "$file" | grep -qxF -- "$anchor"; then
        fail "$document: no such heading: $target"
      fi
    done < <(awk '/^```/ { code = !code } !code' "$document" |
      grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\(//; s/\)$//' || true)
  done < <(documents)
}

# Paths of the repository in code font exist; <op> and * stand for anything.
check_paths() {
  local document path
  while read -r document; do
    while read -r path; do
      path="${path//<op>/*}"
      [ -e "$path" ] || { [[ "$path" == *'*'* ]] && compgen -G "$path" >/dev/null; } ||
        fail "$document: no such path: $path"
    done < <(awk '/^```/ { code = !code } !code' "$document" |
      grep -oE $'\x60(src|include|judge|docs|tests|scripts|oracle|spec|bench|cases|cli|examples|data|cmake|contenders)/[^\x60 ,]*\x60' |
      tr -d '`' || true)
  done < <(documents | grep -v '^judge/.*/PROMPT.md$')
}

check_lengths() {
  local page lines
  for page in docs/ops/*.md; do
    lines=$(wc -l <"$page")
    [ "$lines" -le 150 ] || fail "$page: $lines lines, at most 150"
  done
  lines=$(wc -l <docs/kv_cache.md)
  [ "$lines" -le 200 ] || fail "docs/kv_cache.md: $lines lines, at most 200"
}

check_readme_numbers() {
  local row page number
  while read -r row; do
    page=$(sed -E 's/.*\]\(([^)#]+)[^)]*\).*/\1/' <<<"$row")
    while read -r number; do
      grep -qwF -- "$number" "$page" || fail "README.md: $number is not on $page"
    done < <(awk -F'|' '{ print $4 " " $5 }' <<<"$row" | grep -oE '[0-9]+(\.[0-9]+)?')
  done < <(sed -n '/^## Measured/,/^## /p' README.md | grep -E '^\|.*\]\(' || true)
}

check_links
check_paths
check_lengths
check_readme_numbers
[ "$failures" -eq 0 ] || { echo "check_docs: $failures failures" >&2; exit 1; }
