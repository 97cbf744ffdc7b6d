#!/usr/bin/env bash
# Runs every fuzz target, starting from a copy of its corpus, until SECONDS have passed without new coverage:
# fuzz.sh BUILD_DIR SECONDS [TARGET...]. Fails at the first input that crashes a target and prints its file. Once the bug is
# fixed, add that file to tests/fuzz/corpus/<target>. After a long run, merge new inputs of BUILD_DIR/corpus/<target> into the
# corpus with `BUILD_DIR/fuzz/fuzz_<target> -merge=1`.
set -euo pipefail

build=${1:?usage: fuzz.sh BUILD_DIR SECONDS [TARGET...]}
quiet=${2:?usage: fuzz.sh BUILD_DIR SECONDS [TARGET...]}
shift 2
source=$(cd "$(dirname "$0")/.." && pwd)
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for program in "$build"/fuzz/fuzz_*; do targets+=("${program##*/fuzz_}"); done
fi

pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true' EXIT

for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/found"
  cp -n "$source/tests/fuzz/corpus/$target"/* "$build/corpus/$target"
  dictionary=$source/tests/fuzz/$target.dict
  log=$build/found/$target.log
  # An input that takes 10 seconds or 3 GB is a failure too. The largest image takes a few hundred MB.
  "$build/fuzz/fuzz_$target" -timeout=10 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$build/found/$target-" $([ ! -f "$dictionary" ] || echo "-dict=$dictionary") \
    "$build/corpus/$target" > "$log" 2>&1 &
  pid=$!
  begin=$SECONDS edges=0 new=$SECONDS
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    now=$(tail -n 20 "$log" | grep -Eo 'cov: [0-9]+' | tail -n 1 || true)
    if [ "$now" != "$edges" ]; then edges=$now new=$SECONDS; fi
    if [ $((SECONDS - new)) -ge "$quiet" ]; then kill -INT "$pid" 2>/dev/null || true; break; fi
  done
  code=0
  wait "$pid" || code=$?
  # 72: interrupted by the loop above.
  [ $code = 72 ] || { tail -n 60 "$log" >&2; echo "fuzz: $target failed with exit code $code" >&2; exit 1; }
  pid=
  printf 'fuzz: %-12s %10s inputs, edges %s, the last new one after %d s of %d\n' "$target" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "${edges#cov: }" $((new - begin)) $((SECONDS - begin))
done
