//! `setu-e2e`: the control plane of the tests, for interactive use. `build` builds the programs,
//! `cluster` starts them, prints the path of the kubeconfig and runs until it gets a signal.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use setu_e2e::{HarnessLayout, Stack, StackJobKinds, StackOptions, StackProvider, StackScope, programs};
use tokio::signal::unix::{SignalKind, signal};

/// The real control plane for Setu's tests, on loopback.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The workspace, where it is not the one this program was built in.
    #[arg(long, global = true, value_name = "DIR")]
    workspace: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build all programs that are missing or out of date.
    Build {
        /// The cloud that Karpenter buys from.
        #[arg(long, value_enum, default_value_t)]
        provider: StackProvider,
        /// The operators of other frameworks too.
        #[arg(long)]
        operators: bool,
    },
    /// Start the control plane and keep it until Ctrl-C or SIGTERM.
    Cluster {
        /// The cloud that Karpenter buys from.
        #[arg(long, value_enum, default_value_t)]
        provider: StackProvider,
        /// Apply every YAML file of this folder, or this file, once all is ready; may be repeated. With the
        /// provider `aws` and without this, queues and NodePools to play with.
        #[arg(long, value_name = "PATH")]
        apply: Vec<PathBuf>,
        /// Only etcd and kube-apiserver.
        #[arg(long)]
        api_server_only: bool,
        /// Everything but Kueue and the controllers of jobs, for a program that runs Kueue's controllers itself.
        #[arg(long, conflicts_with_all = ["api_server_only", "operators"])]
        without_kueue: bool,
        /// Jaeger too; where it listens is printed.
        #[arg(long)]
        jaeger: bool,
        /// The operators of other frameworks too, such as KubeRay.
        #[arg(long)]
        operators: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let layout = arguments.workspace.as_deref().map(HarnessLayout::of_workspace).unwrap_or_default();
    match arguments.command {
        Command::Build { provider, operators } => {
            programs::build(&layout, provider, StackScope::Full)?;
            if operators { programs::build_operators(&layout) } else { Ok(()) }
        }
        Command::Cluster { provider, mut apply, api_server_only, without_kueue, jaeger, operators } => {
            let scope = match (api_server_only, without_kueue) {
                (true, _) => StackScope::ApiServer,
                (_, true) => StackScope::WithoutKueue,
                _ => StackScope::Full,
            };
            let job_kinds = match (operators, without_kueue) {
                (true, _) => StackJobKinds::Frameworks,
                (_, true) => StackJobKinds::Kubernetes,
                _ => StackJobKinds::Sets,
            };
            if apply.is_empty() && provider == StackProvider::Aws {
                apply = layout.aws_setup();
            }
            cluster(StackOptions {
                layout,
                scope,
                provider,
                apply,
                jaeger,
                job_kinds,
                provisioning_requests: false,
            })
            .await
        }
    }
}

async fn cluster(options: StackOptions) -> Result<()> {
    let jaeger = options.jaeger;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let stack = tokio::select! {
        stack = Stack::start(options) => stack?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("export KUBECONFIG={}", stack.kubeconfig().display());
    if jaeger {
        let [grpc, _, query] = stack.jaeger();
        println!("export OTEL_EXPORTER_OTLP_ENDPOINT={grpc} OTEL_EXPORTER_OTLP_PROTOCOL=grpc");
        eprintln!("traces are shown on {query}");
    }
    eprintln!(
        "Ready. In another terminal set KUBECONFIG as above and start `setu run`. Ctrl-C ends the cluster."
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        // A cluster that lacks one program would only appear to work.
        broken = stack.broken() => return Err(broken.context("the cluster ends")),
    }
    stack.stop();
    Ok(())
}
