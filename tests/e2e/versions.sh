#!/usr/bin/env bash
# Runs the short form of the scenarios, ProvisioningRequests and a cluster with missing parts on sets of versions of Kubernetes, Karpenter
# and Kueue, and upgrades of the latter two with gangs in flight. The sets are in tests/e2e/src/versions.rs.
set -euo pipefail
cd "$(dirname "$0")/../.."
export SETU_SLOW="${SETU_SLOW:-3}"
bash tests/e2e/setu.sh
failed=0
for set in "$@"; do
  echo "versions: $set"
  SETU_E2E_VERSIONS="$set" cargo test --locked -p setu-e2e --test scenarios || failed=$?
  # What a set leaves out is printed.
  SETU_E2E_VERSIONS="$set" cargo test --locked --no-fail-fast -p setu-e2e --test requests --test bare -- --nocapture || failed=$?
done
# Each has a control plane of its own.
cargo test --locked -p setu-e2e --test upgrades -- --ignored --test-threads 1 || failed=$?
exit "$failed"
