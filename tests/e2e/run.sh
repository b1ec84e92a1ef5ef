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
# A job in the background has its own process group, so that what it started ends with it.
logs=$(mktemp -d)
jobs=()
trap 'for job in "${jobs[@]}"; do kill -- "-$job" 2>/dev/null || true; done; rm -rf "$logs"' EXIT
behind() {
  set -m
  "$@" >"$logs/${#jobs[@]}" 2>&1 &
  set +m
  jobs+=("$!")
}
# Waits for all jobs in the background, prints what they said, and fails if one of them did.
joined() {
  local failed=0 job
  for job in "${!jobs[@]}"; do
    wait "${jobs[$job]}" || failed=$?
    cat "$logs/$job"
  done
  jobs=()
  return "$failed"
}
# They wait half of the time, so two run at a time.
failed=0
behind cargo test --no-fail-fast -p setu-e2e --test examples --test chart --test conformance
cargo test --no-fail-fast -p setu-e2e --test bare --test cli --test kubectl --test traces --test leaders --test silent --test shards --test requests --test documents --test tenant || failed=$?
joined || failed=$?
[ "$failed" = 0 ] || exit "$failed"
# It takes long to build, and the scenarios leave much of the processors' time.
behind nice -n 19 "$programs" build --provider aws
cargo test -p setu-e2e --test scenarios
joined
# These have the AWS provider.
cargo test -p setu-e2e --lib --bins --test cluster --test registries --test aws
# Last, because nothing else works then. Setu used 29 to 31 % of Karpenter's CPU time when this was written.
SETU_BIN="$PWD/target/e2e/setu/debug/setu" cargo bench --locked -p setu-e2e --profile dev --bench compare -- --cell 32x2 --queue queue --most-share 60
