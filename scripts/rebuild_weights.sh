#!/usr/bin/env bash
# Train every model of the registry that has a recipe, and take the results into the checkout.
# An interrupted run goes on where it stood.
set -euo pipefail
cd "$(dirname "$0")/.."
# Page faults of glibc's malloc can cost a third of a training on the CPU.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1000000000}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-4000000000}
with_recipe='import json, sys; print(*(entry["name"] for entry in json.load(sys.stdin) if entry["recipe"]))'
for name in ${*:-$(zoo list --json | python -c "$with_recipe")}; do
    if [ ! -f "runs/$name/results.json" ]; then
        resume=$([ -f "runs/$name/checkpoint.pt" ] && echo --resume || true)
        zoo train "$name" --output "runs/$name" --device "${ZOO_DEVICE:-cpu}" $resume
    fi
    python scripts/adopt.py "runs/$name"
done
python scripts/readme_table.py
