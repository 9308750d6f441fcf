#!/usr/bin/env bash
# Checks the documentation: relative links, anchors and paths resolve, pages for users stay short, those
# of operators have their sections, the index and the table of directories are complete, every number of
# the README's table "Measured" stands on the page it links to.
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
  local page lines limit
  for page in docs/*.md docs/ops/*.md; do
    lines=$(wc -l <"$page")
    limit=150
    [ "$page" = docs/kv_cache.md ] && limit=200 # two programs
    [ "$lines" -le "$limit" ] || fail "$page: $lines lines, at most $limit"
  done
}

# What a page of an operator has: a link to the contract, a compiled snippet, three sections.
check_operator_pages() {
  local page section
  for page in docs/ops/*.md; do
    grep -qE '\]\(\.\./\.\./include/touchstone/ops/' "$page" || fail "$page: no link to its contract"
    grep -qE "touchstone_snippet\(\w+ $page " tests/CMakeLists.txt || fail "$page: no snippet"
    for section in Kernels Measured 'Weak spots'; do
      grep -qx "## $section" "$page" || fail "$page: no section '$section'"
    done
  done
}

check_glossary_order() {
  sed -nE 's/^\| ([^|]+) \|.*/\1/p' docs/glossary.md | sed 1d | LC_ALL=C sort -fc ||
    fail "docs/glossary.md: not in alphabetical order"
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

# The index names every page, the layout every directory.
check_index() {
  local page directory
  for page in docs/*.md docs/*/*.md; do
    [ "$page" = docs/README.md ] || grep -qF "](${page#docs/})" docs/README.md ||
      fail "docs/README.md: does not list $page"
  done
  for directory in */ src/*/; do
    case "$directory" in build*/ | docs/ | include/ | src/) continue ;; esac
    grep -qF "\`$directory" docs/design/layout.md || fail "docs/design/layout.md: does not name $directory"
  done
}

check_links
check_paths
check_index
check_lengths
check_operator_pages
check_glossary_order
check_readme_numbers
[ "$failures" -eq 0 ] || { echo "check_docs: $failures failures" >&2; exit 1; }
