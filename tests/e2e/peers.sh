#!/usr/bin/env bash
# Runs Kueue's own integration specs of its provisioning check, and those of topology-aware scheduling with ProvisioningRequests, unmodified,
# with Setu attached to their API server. Their requests are of other classes, so Setu must not touch them. Arguments are ginkgo's, such as
# `--ginkgo.v`.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tests/e2e/setu.sh
cargo build --locked -p setu-e2e
harness=${CARGO_TARGET_DIR:-$PWD/target}/debug/setu-e2e
"$harness" --workspace "$PWD" build

# A writable copy of the module, with the definitions that its Makefile would collect.
folder=$PWD/target/e2e/peers
rm -rf "$folder" && mkdir -p "$folder"
module() { (cd tests/e2e/programs/kueue && GOWORK=off go list -m -f '{{.Dir}}' "$1"); }
cp -r "$(module sigs.k8s.io/kueue)" "$folder/kueue" && chmod -R u+w "$folder/kueue"
mkdir -p "$folder/kueue/dep-crds/cluster-autoscaler" "$folder/kueue/config/components/crd/_output"
cp "$(module k8s.io/autoscaler/cluster-autoscaler/apis)"/config/crd/*.yaml "$folder/kueue/dep-crds/cluster-autoscaler/"
python3 - target/e2e/manifests/kueue.yaml "$folder/kueue/config/components/crd/_output" <<'PYTHON'
import sys
from pathlib import Path

documents = Path(sys.argv[1]).read_text().split("\n---\n")
definitions = [text for text in documents if "\nkind: CustomResourceDefinition\n" in "\n" + text]
for number, text in enumerate(definitions):
    Path(sys.argv[2], f"{number}.yaml").write_text(text)
PYTHON

# Setu looks for the kinds when it starts.
"$harness" --workspace "$PWD" cluster --api-server-only --apply target/e2e/manifests/karpenter.yaml \
  --apply "$folder/kueue/dep-crds/cluster-autoscaler" --apply "$folder/kueue/config/components/crd/_output" \
  >"$folder/cluster.env" 2>"$folder/cluster.log" &
cluster=$!
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
until grep -q KUBECONFIG "$folder/cluster.env"; do
  kill -0 "$cluster" 2>/dev/null || { cat "$folder/cluster.log"; exit 1; }
  sleep 1
done
# shellcheck source=/dev/null
. "$folder/cluster.env"
target/e2e/setu/debug/setu run --provisioning-requests --leader-elect=false \
  --metrics-bind-address 127.0.0.1:18080 --health-probe-bind-address 127.0.0.1:18081 >"$folder/setu.log" 2>&1 &
ready() { curl --silent --fail http://127.0.0.1:18081/readyz; }
for _ in $(seq 60); do ready >/dev/null && break || sleep 1; done

# envtest takes the API server of KUBECONFIG.
cd "$folder/kueue"
specs() {
  USE_EXISTING_CLUSTER=true PROJECT_DIR="$PWD/go.mod" GOFLAGS=-mod=mod GOWORK=off \
    go test "./test/integration/singlecluster/$1/..." -count 1 -timeout 30m -v -args "${@:2}"
}
specs controller/admissionchecks/provisioning "$@"
specs tas --ginkgo.focus "ProvisioningRequest is used" "$@"

ready || { tail -20 "$folder/setu.log"; echo "Setu was not ready"; exit 1; }
if grep -E 'ProvisioningRequests are not served|created a NodeClaim' "$folder/setu.log"; then
  echo "Setu did not serve ProvisioningRequests, or served one that is not its own"
  exit 1
fi
if curl --silent http://127.0.0.1:18080/metrics | grep '^setu_api_requests_total{.*provisioningrequests' | grep -vE 'verb="(get|list|watch)"'; then
  echo "Setu wrote to a ProvisioningRequest that is not its own"
  exit 1
fi
