#!/usr/bin/env bash
# Builds Setu with fail points and runs the short form of the scenarios on the real control plane; before them, kubectl on
# the embedded cluster, with Setu and without, and that server compared with the real one; after them, the short form of
# the scenarios on Karpenter's AWS provider, which needs Python too.
# An argument selects scenarios of the long form by a part of their title.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v go >/dev/null; then
  echo "the real control plane is built with Go, which is not installed: see go.dev/doc/install (1.26 or later)" >&2
  exit 1
fi
# What is timed is not optimized here, and shares the cores with the control plane.
export SETU_SLOW="${SETU_SLOW:-3}"
bash tests/e2e/setu.sh
if [ -n "${1:-}" ]; then
  exec cargo test -p setu-e2e --test scenarios -- --include-ignored "$1"
fi
cargo test -p setu-e2e --no-run
programs="${CARGO_TARGET_DIR:-target}/debug/setu-e2e"
"$programs" build
# The examples wait most of the time, so the others run meanwhile.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test -p setu-e2e --test examples >"$log" 2>&1 &
examples=$!
failed=0
cargo test --no-fail-fast -p setu-e2e --lib --bins --test bare --test cli --test kubectl --test conformance --test traces --test leaders --test silent --test shards --test requests --test documents --test tenant --test chart || failed=$?
wait "$examples" || failed=$?
cat "$log"
[ "$failed" = 0 ] || exit "$failed"
# It takes long to build, and the scenarios leave much of the processors' time.
nice -n 19 "$programs" build --provider aws &
aws=$!
trap 'kill "$aws" 2>/dev/null || true; rm -f "$log"' EXIT
cargo test -p setu-e2e --test scenarios
wait "$aws"
cargo test -p setu-e2e --test cluster --test registries --test aws
