//! Free loopback ports. All of a stack's ports are taken together before any is given back
//! to the system, so that no two of its programs get the same one.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// The ports of one stack; they stay the same when a program is started again.
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
    pub karpenter_health: u16,
    pub karpenter_metrics: u16,
    pub jaeger: [u16; 7],
    /// Of moto and of the proxy in front of it.
    pub cloud: [u16; 2],
}

impl Ports {
    pub(crate) fn free() -> Result<Self> {
        let mut taken = Vec::new();
        let mut next = || -> Result<u16> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
            let port = listener.local_addr().context("reading the port that was found")?.port();
            taken.push(listener);
            Ok(port)
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
            karpenter_health: next()?,
            karpenter_metrics: next()?,
            jaeger: [next()?, next()?, next()?, next()?, next()?, next()?, next()?],
            cloud: [next()?, next()?],
        })
    }
}
