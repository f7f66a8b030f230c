#!/usr/bin/env bash
# What only a machine with a CUDA device can show, in a few minutes; figures go to the folder $OUT (default runs/gpu).
# Needs the package installed, and MNIST, CIFAR-10, CIFAR-100 and WikiText-2 in ZOO_DATA.
# Stops at the first thing that is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/gpu}
mkdir -p "$out"
zoo env --json | tee "$out/env.json"
at_hand() {  # names of the entries of a task that have weights here
    python - "$1" <<'PY'
import sys

from zoo import hub, registry

known = ((name, registry.get(name)) for name in registry.names())
print(*(name for name, entry in known if entry.task == sys.argv[1] and hub.at_hand(entry)))
PY
}
names=$(at_hand image-classification)
[ -n "$names" ] || { echo "check_gpu.sh: no weights are at hand; scripts/rebuild_weights.sh makes them" >&2; exit 1; }
for name in $names $(at_hand text-generation); do
    zoo eval "$name" --device cpu --json >"$out/$name.cpu.json"
    zoo eval "$name" --device cuda --json >"$out/$name.cuda.json"
    python - "$out/$name.cpu.json" "$out/$name.cuda.json" <<'PY'
import json, sys

cpu, cuda = (json.load(open(path)) for path in sys.argv[1:])
print(f"loss: cpu {cpu['loss']}, cuda {cuda['loss']}")
if "correct" in cpu:
    print(f"cpu {cpu['correct']}, cuda {cuda['correct']} of {cpu['total']}")
    # The devices add up in another order, which can turn the answer for a picture whose two best logits nearly tie:
    # one or two of the ten thousand, where a real fault turns many.
    sys.exit(abs(cpu["correct"] - cuda["correct"]) > 2)
sys.exit(abs(cpu["loss"] - cuda["loss"]) > 1e-4 * cpu["loss"])
PY
done
for name in test-osa-vit test-ns-vit test-ns-swin test-mgt-lm test-std-lm; do
    for precision in no bf16 fp16; do
        zoo train "$name" --device cuda --precision "$precision" --output "$out/$name-$precision" --overwrite --json
    done
done
# The recipe of the source for one epoch, to see how long its hundred would take, compiled and not.
for name in ns-vit-cifar100 ns-swin-cifar100; do
    for compile in false true; do
        zoo train "$name" --recipe ns-cifar --device cuda --precision bf16 --set epochs=1 --set "compile=$compile" \
            --output "$out/$name-compile-$compile" --overwrite --json
    done
done
# Ten epochs of what is known of the recipe of arXiv 2601.01014, compiled and not.
for compile in false true; do
    zoo train mgt-lm-12L --recipe mgt --device cuda --precision bf16 --set epochs=10 --set "compile=$compile" \
        --output "$out/mgt-lm-12L-compile-$compile" --overwrite --json
done
python scripts/bench_decoding.py mgt-lm-12L --device cuda | tee "$out/decoding.txt"
zoo bench $names --device cuda --batch-size 128 --json | tee "$out/bench.json"
zoo bench osa-vit-small-224 vit-small-224 --device cuda --batch-size 32 --json | tee "$out/bench-small-224.json"
zoo bench ns-vit-cifar100 ns-swin-cifar100 --protocol paper --device cuda --json | tee "$out/bench-paper.json"
python scripts/bench_ops.py --device cuda --newton-schulz --json | tee "$out/ops-newton-schulz.json"
python scripts/bench_ops.py --device cuda --json | tee "$out/ops.json"
python scripts/bench_ops.py --device cuda --backward --json | tee "$out/ops-backward.json"
python scripts/bench_ops.py --device cuda --memory --json | tee "$out/ops-memory.json"
