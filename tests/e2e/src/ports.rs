//! Finds free loopback ports. All ports of a stack are bound before any is released, so that no two of its
//! programs get the same one. Ports in the ephemeral range are excluded: an outgoing connection could take
//! one before its program listens on it.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, anyhow, bail};
use ring::rand::{SecureRandom, SystemRandom};

use crate::operators;
use crate::process::Program;

/// The lowest port that is tried.
const FIRST: u16 = 10_000;
/// The size of the range. Ephemeral ports begin at 32768 on Linux and at 49152 on other systems.
const PORTS: u16 = 22_000;
/// The number of tries for each port.
const TRIES: usize = 100;

/// The ports of one stack; they stay the same when a program restarts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub etcd: u16,
    pub etcd_peer: u16,
    pub api_server: u16,
    pub controller_manager: u16,
    pub scheduler: u16,
    pub kwok: u16,
    pub kueue_health: u16,
    pub kueue_webhook: u16,
    pub jobset: [u16; 2],
    pub lws: [u16; 2],
    /// The ports of KubeRay's probes and of the dashboards that it asks.
    pub kuberay: [u16; 2],
    /// The ports of its probes and of its webhooks.
    pub training_operator: [u16; 2],
    /// The ports of its probes and of its webhooks.
    pub trainer: [u16; 2],
    /// The port of its probes.
    pub app_wrapper: u16,
    /// The ports of the probes of the Spark operator and of its webhooks, and of the webhooks themselves.
    pub spark_operator: [u16; 3],
    pub karpenter_health: u16,
    pub karpenter_metrics: u16,
    pub jaeger: [u16; 7],
    /// The ports of moto and of the proxy in front of it.
    pub cloud: [u16; 2],
}

impl Ports {
    pub(crate) fn free() -> Result<Self> {
        let mut taken = Vec::new();
        let random = SystemRandom::new();
        let mut next = || -> Result<u16> {
            for _ in 0..TRIES {
                let mut bytes = [0; 2];
                random.fill(&mut bytes).map_err(|_| anyhow!("the system gave no randomness"))?;
                let port = FIRST + u16::from_ne_bytes(bytes) % PORTS;
                if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                    taken.push(listener);
                    return Ok(port);
                }
            }
            bail!("{TRIES} ports on 127.0.0.1 were tried, and none is free")
        };
        Ok(Self {
            etcd: next()?,
            etcd_peer: next()?,
            api_server: next()?,
            controller_manager: next()?,
            scheduler: next()?,
            kwok: next()?,
            kueue_health: next()?,
            kueue_webhook: next()?,
            jobset: [next()?, next()?],
            lws: [next()?, next()?],
            kuberay: [next()?, next()?],
            training_operator: [next()?, next()?],
            trainer: [next()?, next()?],
            app_wrapper: next()?,
            spark_operator: [next()?, next()?, next()?],
            karpenter_health: next()?,
            karpenter_metrics: next()?,
            jaeger: [next()?, next()?, next()?, next()?, next()?, next()?, next()?],
            cloud: [next()?, next()?],
        })
    }

    /// The ports that a program listens on.
    fn of(&self, program: Program) -> Vec<u16> {
        match program {
            Program::Etcd => vec![self.etcd, self.etcd_peer],
            Program::ApiServer => vec![self.api_server],
            Program::ControllerManager => vec![self.controller_manager],
            Program::Scheduler => vec![self.scheduler],
            Program::Kwok => vec![self.kwok],
            Program::Kueue => vec![self.kueue_health, self.kueue_webhook],
            Program::JobSet => self.jobset.to_vec(),
            Program::LeaderWorkerSet => self.lws.to_vec(),
            Program::KubeRay => self.kuberay.into_iter().take(1).collect(),
            Program::TrainingOperator => self.training_operator.to_vec(),
            Program::MpiOperator => vec![operators::MPI_HEALTH],
            Program::Trainer => self.trainer.to_vec(),
            Program::AppWrapper => vec![self.app_wrapper, operators::APP_WRAPPER_WEBHOOK],
            Program::SparkOperator => self.spark_operator.into_iter().take(1).collect(),
            Program::SparkWebhook => self.spark_operator.into_iter().skip(1).collect(),
            Program::Moto => self.cloud.into_iter().take(1).collect(),
            Program::Karpenter => vec![self.karpenter_health, self.karpenter_metrics],
            Program::Jaeger => self.jaeger.to_vec(),
            // They are in a network of its own.
            Program::Node => Vec::new(),
        }
    }

    /// Fails if another program uses one of the ports of this program.
    pub(crate) fn ensure_free(&self, program: Program) -> Result<()> {
        let taken = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err();
        match self.of(program).into_iter().find(taken) {
            Some(port) => bail!("{}", is_taken(program.name(), port)),
            None => Ok(()),
        }
    }
}

/// The message for a port that another program uses.
pub(crate) fn is_taken(who: &str, port: u16) -> String {
    format!(
        "{who} cannot listen on 127.0.0.1:{port}, which another program has taken: start again, for other ports"
    )
}
