#!/usr/bin/env bash
# Runs Kueue's own integration specs of its provisioning check, and those of topology-aware scheduling with ProvisioningRequests, with
# Setu attached to their API server. First unmodified: their requests are of other classes, so Setu must not touch them. Then with the
# changes of peers/overlay.py, so that Setu answers. Arguments are ginkgo's, such as `--ginkgo.v`.
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

ready() { curl --silent --fail http://127.0.0.1:18081/readyz; }

# Starts a control plane with these flags, and then Setu, which looks for the kinds when it starts.
start() {
  local log=$folder/$1
  "$harness" --workspace "$PWD" cluster "${@:2}" --apply target/e2e/manifests/karpenter.yaml \
    --apply "$folder/kueue/dep-crds/cluster-autoscaler" --apply "$folder/kueue/config/components/crd/_output" \
    >"$log.env" 2>"$log-cluster.log" &
  cluster=$!
  until grep -q KUBECONFIG "$log.env"; do
    kill -0 "$cluster" 2>/dev/null || { cat "$log-cluster.log"; exit 1; }
    sleep 1
  done
  # shellcheck source=/dev/null
  . "$log.env"
  target/e2e/setu/debug/setu run --provisioning-requests --leader-elect=false --config tests/e2e/peers/policy.yaml \
    --metrics-bind-address 127.0.0.1:18080 --health-probe-bind-address 127.0.0.1:18081 >"$log-setu.log" 2>&1 &
  setu=$!
  for _ in $(seq 60); do ready >/dev/null && break || sleep 1; done
}
stop() { kill "$setu" "$cluster" && wait "$setu" "$cluster" || true; }
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

# envtest takes the API server of KUBECONFIG.
specs() {
  (
    cd "$folder/kueue"
    USE_EXISTING_CLUSTER=true PROJECT_DIR="$PWD/go.mod" GOFLAGS=-mod=mod GOWORK=off \
      go test "./test/integration/singlecluster/$1/..." -count 1 -timeout 30m -v -args "${@:2}"
  )
}
all_specs() {
  specs controller/admissionchecks/provisioning "$@"
  specs tas --ginkgo.focus "ProvisioningRequest is used" "$@"
}
metric() { curl --silent http://127.0.0.1:18080/metrics | grep "^$1" || true; }
fail() { tail -20 "$folder/$1-setu.log"; echo "$2"; exit 1; }

start unmodified --api-server-only
all_specs "$@"
ready || fail unmodified "Setu was not ready"
if grep -E 'ProvisioningRequests are not served|created a NodeClaim' "$folder/unmodified-setu.log"; then
  fail unmodified "Setu did not serve ProvisioningRequests, or served one that is not its own"
fi
if metric 'setu_api_requests_total{.*provisioningrequests' | grep -vE 'verb="(get|list|watch)"'; then
  fail unmodified "Setu wrote to a ProvisioningRequest that is not its own"
fi
stop

expected=$(python3 tests/e2e/peers/overlay.py "$folder/kueue")
read -r provisioned failed <<<"$expected"
start answered --without-kueue --apply tests/e2e/peers/nodepools.yaml
all_specs "$@"
ready || fail answered "Setu was not ready"
count() { metric "$1" | awk "/$2/ {sum += \$2} END {print sum + 0}"; }
approved=$(count setu_workloads_processed_total approved) yielded=$(count setu_workloads_processed_total yielded)
echo "Setu provisioned $approved requests and failed $yielded. The specs wait for $provisioned and $failed."
((approved >= provisioned && yielded >= failed)) || fail answered "Setu did not answer these requests"
for _ in $(seq 60); do (($(count setu_active_nodeclaims .) == 0)) && exit; sleep 1; done
fail answered "Setu did not give all nodes back"
