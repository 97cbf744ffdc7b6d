#!/usr/bin/env bash
# Formats all C++ files with clang-format. With --check, changes nothing and fails if a file is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/sources.sh

case ${1:-} in
  '') how=(-i) ;;
  --check) how=(--dry-run -Werror) ;;
  *) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac

mapfile -t files < <(cpp_files "${source_dirs[@]}")
[ ${#files[@]} -gt 0 ] || { echo "$0: no C++ files found" >&2; exit 1; }
clang-format "${how[@]}" "${files[@]}"
[ "${how[0]}" = -i ] || echo "format: ${#files[@]} files are formatted"
