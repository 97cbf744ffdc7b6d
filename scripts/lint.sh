#!/usr/bin/env bash
# Runs clang-tidy, and cppcheck if it is installed, on the torch-free modules: lint.sh BUILD_DIR, a configured build directory.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/sources.sh

build=${1:?usage: lint.sh BUILD_DIR}
[ -f "$build/compile_commands.json" ] || { echo "$0: $build/compile_commands.json does not exist" >&2; exit 1; }
# clang rejects this flag of GCC.
mkdir -p "$build/lint"
sed 's/ -fno-predictive-commoning//' "$build/compile_commands.json" > "$build/lint/compile_commands.json"
mapfile -t sources < <(cpp_files "${torch_free_dirs[@]}" | grep '\.cc$')

# HWY_COMPILE_ONLY_STATIC: check each kernel once, not once per SIMD target.
echo "lint: clang-tidy on ${#sources[@]} files"
printf '%s\n' "${sources[@]}" | xargs -P "$(scripts/jobs.sh)" -n 1 clang-tidy --quiet -p "$build/lint" \
  --extra-arg=-DHWY_COMPILE_ONLY_STATIC 2> >(grep -v ' warnings\? generated\.$' >&2)

if command -v cppcheck >/dev/null; then
  echo "lint: cppcheck on ${#sources[@]} files"
  cppcheck --quiet --std=c++17 --language=c++ --enable=warning,performance,portability --inline-suppr -I . \
    --suppress=missingIncludeSystem --error-exitcode=1 "${sources[@]}"
fi
