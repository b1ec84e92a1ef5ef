#!/usr/bin/env bash
# Builds the Setu that the scenarios run, which can kill itself after a write, and puts it beside the one that cannot. What it
# depends on is compiled once for both.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --features fail-points
install -D target/debug/setu target/e2e/setu/debug/setu
