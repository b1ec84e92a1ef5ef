#!/usr/bin/env bash
# Builds Setu with fail points and runs the scenarios on the real control plane; before them, kubectl on
# the embedded cluster, with Setu and without, that server compared with the real one, and the short form of the
# scenarios on Karpenter's AWS provider, which needs Python too.
# An argument selects scenarios by a part of their title.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v go >/dev/null; then
  echo "the real control plane is built with Go, which is not installed: see go.dev/doc/install (1.26 or later)" >&2
  exit 1
fi
# What is timed is not optimized here, and shares the cores with the control plane.
export SETU_SLOW="${SETU_SLOW:-3}"
bash tests/e2e/setu.sh
if [ -z "${1:-}" ]; then
  cargo test -p setu-e2e --lib --bins --test bare --test cli --test kubectl --test conformance --test traces --test leaders --test silent --test shards --test examples --test documents --test cluster --test registries --test tenant --test chart --test aws
fi
exec cargo test -p setu-e2e --test scenarios -- "${1:-}"
