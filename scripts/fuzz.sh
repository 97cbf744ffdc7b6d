#!/usr/bin/env bash
# Runs every fuzz target on a copy of its corpus: fuzz.sh BUILD_DIR SECONDS [TARGET...]. Fails at the first input that a
# target does not survive, and says where it is: once mended, it belongs into tests/fuzz/corpus/<target>. What is new in
# BUILD_DIR/corpus/<target> after a long run is worth a `BUILD_DIR/fuzz/fuzz_<target> -merge=1` into the corpus.
set -euo pipefail

build=${1:?usage: fuzz.sh BUILD_DIR SECONDS [TARGET...]}
seconds=${2:?usage: fuzz.sh BUILD_DIR SECONDS [TARGET...]}
shift 2
source=$(cd "$(dirname "$0")/.." && pwd)
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for program in "$build"/fuzz/fuzz_*; do targets+=("${program##*/fuzz_}"); done
fi

for target in "${targets[@]}"; do
  echo "fuzz: $target for $seconds seconds"
  mkdir -p "$build/corpus/$target" "$build/found"
  cp -n "$source/tests/fuzz/corpus/$target"/* "$build/corpus/$target"
  dictionary=$source/tests/fuzz/$target.dict
  log=$build/found/$target.log
  # 10 seconds or 3 GB for one input are a fault too. The largest picture takes a few hundred MB.
  "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$build/found/$target-" $([ ! -f "$dictionary" ] || echo "-dict=$dictionary") \
    "$build/corpus/$target" > "$log" 2>&1 || { tail -n 60 "$log" >&2; echo "fuzz: $target failed" >&2; exit 1; }
  grep -E '^#[0-9]+.DONE' "$log"
done
