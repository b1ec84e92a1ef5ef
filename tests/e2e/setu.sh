#!/usr/bin/env bash
# Builds the Setu that the scenarios run, which can kill itself after a write, and puts it where they find it. Most of what it depends on
# is compiled once for it and for the tests. The next plain build replaces target/debug/setu, which is the same program until then.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The core is compiled once more, without the tests' features. Optimizing it takes longer than it saves here.
cargo build -p setu --bin setu --features fail-points \
  --config 'profile.dev.package.setu-core.opt-level=0' --config 'profile.dev.package.setu-sim.opt-level=0'
install -D "${CARGO_TARGET_DIR:-target}/debug/setu" target/e2e/setu/debug/setu
