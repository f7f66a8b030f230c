#!/usr/bin/env bash
# What only a machine with a CUDA device can show, in a few minutes; figures go to the folder $OUT (default runs/gpu).
# Needs the package installed and MNIST in ZOO_DATA. Stops at the first thing that is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/gpu}
mkdir -p "$out"
zoo env --json | tee "$out/env.json"
for name in $(zoo list); do
    zoo eval "$name" --device cpu --json >"$out/$name.cpu.json"
    zoo eval "$name" --device cuda --json >"$out/$name.cuda.json"
    python - "$out/$name.cpu.json" "$out/$name.cuda.json" <<'PY'
import json, sys

cpu, cuda = (json.load(open(path)) for path in sys.argv[1:])
print(f"cpu {cpu['correct']}, cuda {cuda['correct']} of {cpu['total']}")
sys.exit(abs(cpu["correct"] - cuda["correct"]) > 2)
PY
done
for precision in no bf16 fp16; do
    zoo train test-osa-vit --device cuda --precision "$precision" --output "$out/train-$precision" --overwrite --json
done
zoo bench $(zoo list) --device cuda --batch-size 128 --json | tee "$out/bench.json"
