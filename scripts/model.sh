#!/usr/bin/env bash
# Models of what threads share: loom tries every order in which the steps of small lock-free parts can come and be seen, shuttle some
# thousand orders of parts with locks and tasks (docs/VERIFICATION.md). The models run the product's own code.
#
# Those of loom are part of the ordinary suite, there with a bound on preemptions or time where all orders take long; here with a
# larger one.
# FOREBAY_MODEL_ORDERS says how many orders shuttle tries of each model and scheduler.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "loom"
FOREBAY_MODEL=1 CARGO_TARGET_DIR=target/model cargo test --locked --all-features --lib \
    -p forebay-client -p forebay-fuse-io -p forebay-store -p forebay-transport -p forebay-worker -- \
    --nocapture model:: in_whatever_order_threads_come

# Everything is compiled with the flag, so in a directory of its own.
echo "shuttle"
export FOREBAY_MODEL_ORDERS=${FOREBAY_MODEL_ORDERS:-10000}
CARGO_TARGET_DIR=target/shuttle RUSTFLAGS="--cfg shuttle" cargo test --locked --lib \
    -p forebay-engine -p forebay-memory -p forebay-one-sided -p forebay-store -- --nocapture --skip verify::model model::
