#!/usr/bin/env bash
# The image and the chart on a node with a real kubelet. Installs what the node needs from the distribution's packages, packs the
# image as `just image` does, and runs the test. Needs root on Linux for amd64, Go, Python, curl and a C compiler.
# SETU_NODE_WITHOUT names parts that this machine is known not to be able to run (node, oom). The image's program is built without
# optimization; SETU_IMAGE_PROFILE=release builds the one that is released.
set -euo pipefail
cd "$(dirname "$0")/../../.."
missing=()
for needs in containerd:containerd ctr:containerd runc:runc iptables:iptables ip:iproute2 curl:curl /usr/lib/cni/bridge:containernetworking-plugins; do
  if ! command -v "${needs%:*}" > /dev/null; then missing+=("${needs#*:}"); fi
done
if [ "${#missing[@]}" -gt 0 ]; then
  if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "a node needs ${missing[*]}: install them, or run this as root where there is apt-get" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${missing[@]}"
fi
profile="${SETU_IMAGE_PROFILE:-dev}"
python3 .ci/image --only amd64 --profile "$profile" --out target/e2e/setu-image.tar
# The tests' world wants a program, but the test starts Setu in the node only.
export SETU_BIN="$PWD/target/x86_64-unknown-linux-musl/${profile/dev/debug}/setu"
export SETU_SLOW="${SETU_SLOW:-3}"
cargo test --locked -p setu-e2e --test node -- --nocapture
