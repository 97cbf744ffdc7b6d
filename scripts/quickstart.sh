#!/usr/bin/env bash
# Trains a small AFT-conv model on the built-in stories for about a minute, then lets it write. Argument: the program aft.
# Each call creates a new directory below runs/, so nothing is overwritten.
set -euo pipefail
aft=$1
out=runs/quickstart
for ((i = 2; ; i++)); do
  [ -e "$out" ] || break
  out=runs/quickstart-$i
done

mkdir -p runs
echo "Training on the built-in stories (Ctrl-C stops and saves):"
"$aft" train text-aft-conv-4x128 --out "$out" --steps "${QUICKSTART_STEPS:-3000}"
echo
echo "What it writes now, after 'Once upon a time', 'One day,' and '\"Can you help':"
"$aft" generate "$out" --prompt 'Once upon a time' --prompt 'One day,' --prompt '"Can you help' \
  --bytes 240 --temperature 0.5
cat <<END
====
Training curve:  $out/curve.svg
Train longer:    $aft train --resume $out --steps 6000
Generate text:   $aft generate $out --prompt 'your words'
Your own text:   $aft train text-aft-conv-4x128 --data FILE --out runs/text
Other models:    $aft presets
END
