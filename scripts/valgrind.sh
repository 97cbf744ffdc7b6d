#!/usr/bin/env bash
# Runs the tests of the kernels in BUILD_DIR under valgrind: no read of what nobody wrote, no access out of bounds, no
# leak. valgrind.sh BUILD_DIR
set -euo pipefail
build=$1

failed=0
count=0
for test in "$build"/tests/kernels_*_test; do
  count=$((count + 1))
  printf 'valgrind: %s\n' "$(basename "$test")"
  valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "$test" --gtest_brief=1 ||
    failed=$((failed + 1))
done
printf '%s passed, %s failed\n' $((count - failed)) "$failed"
[ "$failed" = 0 ] && [ "$count" -gt 0 ]
