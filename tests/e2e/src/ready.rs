//! The readiness check of each program. The one rule: a program that passes its check can be used.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use crate::ports::Ports;
use crate::process::Program;
use crate::{jaeger, jobs, kueue, node, operators, probe, spark};

/// Fails unless the program answers. Before the API server does, there is no client.
pub(crate) async fn ready(program: Program, ports: Ports, client: Option<&Client>) -> Result<()> {
    let client = || client.cloned().context("the API server has not been started");
    let http = |port: u16| format!("http://127.0.0.1:{port}");
    let https = |port: u16| format!("https://127.0.0.1:{port}");
    match program {
        Program::Etcd => probe::answers(&http(ports.etcd), "/health").await,
        Program::ApiServer => probe::answers(&https(ports.api_server), "/readyz").await,
        Program::Scheduler => probe::answers(&https(ports.scheduler), "/healthz").await,
        Program::Kwok => probe::answers(&http(ports.kwok), "/healthz").await,
        Program::Karpenter => probe::answers(&http(ports.karpenter_health), "/readyz").await,
        Program::Moto => probe::answers(&http(ports.cloud[0]), "/moto-api/").await,
        Program::Jaeger => probe::answers(&http(jaeger::health(ports)), "/").await,
        Program::Node => node::ready(client()?, ports).await,
        Program::KubeRay => probe::answers(&http(ports.kuberay[0]), "/readyz").await,
        Program::TrainingOperator => probe::answers(&http(ports.training_operator[0]), "/readyz").await,
        Program::MpiOperator => probe::answers(&http(operators::MPI_HEALTH), "/healthz").await,
        Program::Trainer => probe::answers(&http(ports.trainer[0]), "/readyz").await,
        Program::AppWrapper => probe::answers(&http(ports.app_wrapper), "/readyz").await,
        Program::SparkOperator => probe::answers(&http(ports.spark_operator[0]), "/readyz").await,
        Program::SparkWebhook => spark::taken(&client()?).await,
        Program::JobSet | Program::LeaderWorkerSet => jobs::taken(program, &client()?).await,
        Program::ControllerManager => {
            probe::answers(&https(ports.controller_manager), "/healthz").await?;
            // Its controllers create this first, so once it exists they run.
            let accounts: Api<ServiceAccount> = Api::namespaced(client()?, "default");
            accounts.get("default").await?;
            Ok(())
        }
        Program::Kueue => {
            probe::answers(&http(ports.kueue_health), "/readyz").await?;
            kueue::webhooks_answer(&client()?).await
        }
    }
}
