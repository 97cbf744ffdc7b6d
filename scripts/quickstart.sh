#!/usr/bin/env bash
# Trains a small AFT-local model on the built-in text for about a minute, then lets it write. Argument: the program aft.
# Each call makes a directory of its own below runs/, so nothing is ever overwritten.
set -euo pipefail
aft=$1
out=runs/quickstart
for ((i = 2; ; i++)); do
  [ -e "$out" ] || break
  out=runs/quickstart-$i
done

mkdir -p runs
echo "Training on the project's own sources and documents (Ctrl-C stops and saves):"
"$aft" train text-aft-local-4x128 --out "$out" --steps "${QUICKSTART_STEPS:-800}" \
  --set model.length=128 --set train.batch=8 --set train.rate=0.004 --set train.validate=200 --set data.valid_bytes=20000
[ -e "$out/model.safetensors" ] || exit 0  # stopped before there was anything to see
echo
echo "What it writes now (the text before the bar is given):"
for prompt in '/// The ' '## ' 'static '; do
  echo "---- $prompt|"
  "$aft" generate "$out" --prompt "$prompt" --bytes 240 --temperature 0.6
done
cat <<END
----
The curve:     $out/curve.svg
Go on:         $aft train --resume $out --steps 2000
Talk to it:    $aft generate $out --prompt 'your words'
Your own text: $aft train text-aft-local-4x128 --data book.txt --out book
Other models:  $aft presets
END
