//! Starts etcd and the Kubernetes programs. All default controllers run: only the node lifecycle
//! controller removes the not-ready taint from nodes.

use std::path::Path;

use crate::identity::Identity;
use crate::ports::Ports;
use crate::process::{Program, ProgramCommand};
use crate::{StackScope, node};

/// More than any scenario needs, so that client-side rate limits do not affect measurements.
const CLIENT_RATE: [&str; 2] = ["--kube-api-qps=500", "--kube-api-burst=1000"];

/// The oldest version whose scheduler binds the pods of a PodGroup all at once or not at all. It is off by default there.
pub(crate) const WITH_PODGROUPS: &str = "1.37";

/// Turns PodGroups on in one of Kubernetes' programs.
pub(crate) fn turn_on_podgroups(launch: &mut ProgramCommand) {
    match launch.program {
        Program::ApiServer => {
            launch.arguments.push("--runtime-config=scheduling.k8s.io/v1beta1=true".to_owned());
        }
        Program::ControllerManager | Program::Scheduler => {}
        _ => return,
    }
    launch.arguments.push("--feature-gates=GenericWorkload=true".to_owned());
}

pub(crate) fn etcd(folder: &Path, ports: Ports) -> ProgramCommand {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let arguments = [
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    ProgramCommand::new(Program::Etcd, arguments)
}

pub(crate) fn api_server(identity: &Identity, ports: Ports, scope: StackScope) -> ProgramCommand {
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", ports.api_server),
        format!("--cert-dir={}", identity.certificates.display()),
        format!("--token-auth-file={}", identity.tokens.display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", identity.issuer_public_key.display()),
        format!("--service-account-signing-key-file={}", identity.issuer_key.display()),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--max-requests-inflight=2000".to_owned(),
        "--max-mutating-requests-inflight=1000".to_owned(),
        "--shutdown-delay-duration=0s".to_owned(),
    ];
    if scope == StackScope::RealNode {
        // The certificate covers this address too, and the Service that pods use leads to it.
        arguments.push(format!("--advertise-address={}", node::api_server_address(ports)));
        arguments.push("--authorization-mode=Node,RBAC".to_owned());
        arguments.push("--enable-admission-plugins=NodeRestriction".to_owned());
    } else {
        // Only pods look for the API server in the endpoints of its Service, where newer versions refuse a loopback address.
        arguments.push("--advertise-address=127.0.0.1".to_owned());
        arguments.push("--endpoint-reconciler-type=none".to_owned());
        arguments.push("--authorization-mode=RBAC".to_owned());
        // No kubelet mounts tokens here, so pods need no service account.
        arguments.push("--disable-admission-plugins=ServiceAccount".to_owned());
    }
    ProgramCommand::new(Program::ApiServer, arguments)
}

pub(crate) fn controller_manager(identity: &Identity, ports: Ports) -> ProgramCommand {
    let mut arguments = client_of_api_server(identity, ports.controller_manager);
    arguments.push("--controllers=*".to_owned());
    // Each controller then has its own user name. Admission policies allow the garbage collector by that name.
    arguments.push("--use-service-account-credentials=true".to_owned());
    arguments.push(format!("--service-account-private-key-file={}", identity.issuer_key.display()));
    // The CA by which pods trust the API server.
    arguments.push(format!("--root-ca-file={}", identity.certificate().display()));
    ProgramCommand::new(Program::ControllerManager, arguments)
}

pub(crate) fn scheduler(identity: &Identity, ports: Ports) -> ProgramCommand {
    ProgramCommand::new(Program::Scheduler, client_of_api_server(identity, ports.scheduler))
}

fn client_of_api_server(identity: &Identity, port: u16) -> Vec<String> {
    let kubeconfig = identity.kubeconfig.display();
    let mut arguments = vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", identity.certificates.join(port.to_string()).display()),
    ];
    arguments.extend(CLIENT_RATE.map(str::to_owned));
    arguments
}
