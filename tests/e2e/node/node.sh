#!/usr/bin/env bash
# A node: containerd, CoreDNS, kube-proxy and the kubelet, in namespaces of their own for processes, mounts and network. One link
# leads to the host. When this process is killed, all of it ends: pods, mounts, addresses and firewall rules. src/node.rs writes
# the configuration in FOLDER.
#   node.sh FOLDER BIN LOGS LINK HOST_ADDRESS NODE_ADDRESS
set -euo pipefail
if [ "$1" != inside ]; then
  # The host's network, for the other end of the link.
  exec 9</proc/self/ns/net
  exec unshare --fork --kill-child --pid --mount-proc --mount --net --uts --ipc bash "$0" inside "$@"
fi
shift
folder=$1 bin=$2 logs=$3 link=$4 host=$5 node=$6

# What these programs write outside of FOLDER: sockets, network namespaces, locks, links to logs.
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /var/log/containers
mount -t tmpfs tmpfs /var/log/containers

ip link set lo up
ip link add eth0 type veth peer name "$link"
ip link set "$link" netns /proc/self/fd/9
nsenter --net=/proc/self/fd/9 ip address add "$host/30" dev "$link"
nsenter --net=/proc/self/fd/9 ip link set "$link" up
ip address add "$node/30" dev eth0
ip link set eth0 up
ip route add default via "$host"
exec 9<&-
echo 1 > /proc/sys/net/ipv4/ip_forward

containerd --config "$folder/containerd.toml" > "$logs/containerd.log" 2>&1 &
"$bin/coredns" -conf "$folder/Corefile" > "$logs/coredns.log" 2>&1 &
"$bin/kube-proxy" --config "$folder/kube-proxy.yaml" > "$logs/kube-proxy.log" 2>&1 &
for _ in {1..100}; do
  if ctr --address "$folder/containerd.sock" version > /dev/null 2>&1; then break; fi
  sleep 0.1
done
ctr --address "$folder/containerd.sock" --namespace k8s.io images import "$folder/pause.tar"
"$bin/kubelet" --config "$folder/kubelet.yaml" --kubeconfig "$folder/kubeconfig-kubelet" --root-dir "$folder/kubelet" \
  --cert-dir "$folder/kubelet-certificates" --hostname-override real --node-ip "$node" > "$logs/kubelet.log" 2>&1 &
wait -n || true
echo "one of the node's programs has ended; the other logs in $logs say which and why" >&2
exit 1
