//! Starts the node side: kwok, which simulates the kubelets, and Karpenter with the weather-controlled
//! cloud. kwok manages only the nodes that carry its annotation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{HarnessLayout, StackProvider, versions};

pub(crate) fn kwok(
    layout: &HarnessLayout,
    folder: &Path,
    identity: &Identity,
    ports: Ports,
) -> Result<ProgramCommand> {
    let stages = folder.join("stages.yaml");
    let mut text = read(&layout.upstream().join("kwok.yaml"))?;
    text.push_str("---\n");
    text.push_str(&read(&layout.manifest("pod-complete.yaml"))?);
    fs::write(&stages, text).with_context(|| format!("writing {}", stages.display()))?;
    let arguments = [
        format!("--kubeconfig={}", identity.kubeconfig.display()),
        format!("--config={}", stages.display()),
        "--manage-all-nodes=false".to_owned(),
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".to_owned(),
        // Without a renewed lease, a node counts as lost in less than a minute.
        "--node-lease-duration-seconds=40".to_owned(),
        "--cidr=10.1.0.0/16".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
        format!("--server-address=127.0.0.1:{}", ports.kwok),
    ];
    Ok(ProgramCommand::new(Program::Kwok, arguments))
}

pub(crate) fn karpenter(layout: &HarnessLayout, identity: &Identity, ports: Ports) -> Result<ProgramCommand> {
    let ignores_devices = !versions::of(layout)?.handles_devices;
    let mut launch = any_karpenter(identity, ports);
    launch.environment.extend([
        ("KUBE_CLIENT_QPS", "500".to_owned()),
        ("KUBE_CLIENT_BURST", "1000".to_owned()),
        ("INSTANCE_TYPES_FILE_PATH", layout.instance_types().display().to_string()),
        ("IGNORE_DRA_REQUESTS", ignores_devices.to_string()),
    ]);
    Ok(launch)
}

/// The settings of Karpenter that do not depend on its provider.
pub(crate) fn any_karpenter(identity: &Identity, ports: Ports) -> ProgramCommand {
    let mut launch = ProgramCommand::new(Program::Karpenter, []);
    launch.environment = vec![
        ("KUBECONFIG", identity.karpenter.display().to_string()),
        ("DISABLE_LEADER_ELECTION", "true".to_owned()),
        ("SYSTEM_NAMESPACE", "kube-system".to_owned()),
        ("METRICS_PORT", ports.karpenter_metrics.to_string()),
        ("HEALTH_PROBE_PORT", ports.karpenter_health.to_string()),
    ];
    launch
}

/// The manifest with the CRDs of Karpenter and of this provider.
pub(crate) fn karpenter_manifests(layout: &HarnessLayout, provider: StackProvider) -> PathBuf {
    layout.upstream().join(match provider {
        StackProvider::Kwok => "karpenter.yaml",
        StackProvider::Aws => "karpenter-aws.yaml",
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
