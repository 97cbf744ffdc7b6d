#!/usr/bin/env bash
# Runs the kernel tests in BUILD_DIR under valgrind, JOBS (1) at a time, which finds uninitialised reads, accesses out of
# bounds and leaks: valgrind.sh BUILD_DIR [JOBS]
set -euo pipefail
build=${1:?usage: valgrind.sh BUILD_DIR [JOBS]}

one() {
  local begin=$SECONDS log
  log=$(mktemp)
  if valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "$1" --gtest_brief=1 \
    > "$log" 2>&1; then
    printf 'valgrind: %s passed, %d s\n' "${1##*/}" $((SECONDS - begin))
  else
    printf 'valgrind: %s failed\n%s\n' "${1##*/}" "$(cat "$log")"
  fi
  rm "$log"
}
export -f one

tests=("$build"/tests/kernels_*_test)
log=$(mktemp)
trap 'rm "$log"' EXIT
printf '%s\0' "${tests[@]}" | xargs -0 -P "${2:-1}" -I {} bash -c 'one {}' | tee "$log"
passed=$(grep -c '^valgrind: .* passed' "$log" || true)
printf '%s passed, %s failed\n' "$passed" $((${#tests[@]} - passed))
[ "$passed" = ${#tests[@]} ]
