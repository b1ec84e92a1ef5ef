#!/usr/bin/env bash
# Checks with Prometheus' own tool: what /metrics exposes, the alert rules, and the rules' unit tests.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v promtool >/dev/null; then
  echo "promtool is not installed: it comes with Prometheus (apt install prometheus, or prometheus.io/download)" >&2
  exit 1
fi
promtool check rules charts/setu/rules/setu.yaml
(cd charts/setu/rules && promtool test rules setu.test.yaml)
exec cargo test --locked --workspace --exclude setu-e2e --test metrics -- --include-ignored promtool
