//! The API server to fill: the embedded one, or etcd and a real kube-apiserver without controllers.

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use setu_clock::Clock;
use setu_e2e::{Stack, StackOptions, StackScope, definitions};
use setu_sim::api::{ApiServer, ServerOptions as Embedded};
use setu_sim::http;
use std::path::PathBuf;
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

/// Stopped on drop.
pub enum Server {
    /// Its kubeconfig.
    Embedded(NamedTempFile),
    /// Boxed because it is large.
    Real(Box<Stack>),
}

impl Server {
    pub async fn embedded() -> Result<Self> {
        // A Workload must not be younger than its journal, or Setu would rewrite each journal.
        let clock = Clock::starting_at(Timestamp::now() - SignedDuration::from_mins(5));
        let server = ApiServer::new(Embedded { seed: 7, clock, replicas: 1, history: 10_000 });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let kubeconfig = NamedTempFile::new()?;
        std::fs::write(&kubeconfig, http::kubeconfig(listener.local_addr()?))?;
        tokio::spawn(http::serve(server, listener, CancellationToken::new()));
        Ok(Self::Embedded(kubeconfig))
    }

    pub async fn real() -> Result<Self> {
        let stack =
            Stack::start(StackOptions { scope: StackScope::ApiServer, ..StackOptions::default() }).await?;
        definitions::install(&stack.client()?).await?;
        Ok(Self::Real(Box::new(stack)))
    }

    pub fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Embedded(file) => file.path().to_owned(),
            Self::Real(stack) => stack.kubeconfig().to_owned(),
        }
    }

    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    pub fn end(self) {
        if let Self::Real(stack) = self {
            stack.stop();
        }
    }
}
