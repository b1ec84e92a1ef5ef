#!/usr/bin/env bash
# Builds the Setu that the scenarios run, which can kill itself after a write, and puts it where they find it. Most of what it depends on
# is compiled once for it and for the tests. The next plain build replaces target/debug/setu, which is the same program until then.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Without the tests' features the core is compiled again, and the real control plane is slower than it anyway.
cargo build -p setu --bin setu --features fail-points \
  --config 'profile.dev.package.setu-core.opt-level=0' --config 'profile.dev.package.setu-sim.opt-level=0'
install -D "${CARGO_TARGET_DIR:-target}/debug/setu" target/e2e/setu/debug/setu
