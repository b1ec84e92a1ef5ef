//! Setu on the real control plane, behind a proxy whose connections go silent without closing, as when the machine of
//! an API server dies.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/replicas.rs"]
mod replicas;
#[path = "scenarios/setu.rs"]
mod setu;

use crate::setu::Setu;
use ::setu::sim::scenario::controller_name_of;
use replicas::Replicas;
use serde_json::json;
use setu_e2e::KUEUE_NAMESPACE;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const ID: &str = "silent";
/// Nodes register after 20 s and are given up after 40 s. Both times pass while the connections are silent.
const POLICY: &str =
    "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy, defaults: {deadlines: {register: 40s}}}";

/// A proxy for a server. After [`Wire::falls_silent`], existing connections carry no data and do not close.
struct Wire {
    address: SocketAddr,
    silences: watch::Sender<u32>,
    counts: Arc<Counts>,
}

/// The effects of silences, counted.
#[derive(Default)]
struct Counts {
    /// Reads of data that was not passed on.
    swallowed: AtomicUsize,
    /// Connections that were accepted after a silence began.
    accepted_later: AtomicUsize,
}

impl Wire {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (silences, heard) = watch::channel(0);
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counted.accepted_later.fetch_add(usize::from(*heard.borrow() > 0), Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, heard.clone(), Arc::clone(&counted)));
                tokio::spawn(carry(from_server, to_client, heard.clone(), Arc::clone(&counted)));
            }
        });
        Self { address, silences, counts }
    }

    fn falls_silent(&self) {
        self.silences.send_modify(|times| *times += 1);
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    heard: watch::Receiver<u32>,
    counts: Arc<Counts>,
) {
    let begun = *heard.borrow();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if *heard.borrow() != begun {
            counts.swallowed.fetch_add(usize::from(read > 0), Ordering::Relaxed);
            // Neither side notices.
            std::future::pending::<()>().await;
        }
        if read == 0 || to.write_all(buffer.get(..read).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_whose_nodes_register_during_silence_is_not_given_up() {
    let mut play = Replicas::start(ID, &[]).await;
    let wire = Wire::to(play.stack.api_server().trim_start_matches("https://").to_owned()).await;
    let direct = play.stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
    let folder = play.stack.folder().join(ID);
    std::fs::create_dir_all(&folder).unwrap();
    let text = std::fs::read_to_string(direct).unwrap();
    let through = text.replace(&play.stack.api_server(), &format!("https://{}", wire.address));
    assert_ne!(through, text);
    let kubeconfig = folder.join("through-the-wire.yaml");
    std::fs::write(&kubeconfig, through).unwrap();
    let mut setu = Setu::new(&kubeconfig, &controller_name_of(ID), POLICY, &folder).unwrap();
    setu.start(None).unwrap();
    play.all.insert("setu", setu);

    play.step(json!({"weather": [{"registrationDelay": "20s"}]})).await;
    play.step(json!({"submit": {"name": "train", "pods": 2, "gpus": 1, "runFor": "2s"}})).await;
    play.step(json!({"until": {"job": "train", "state": "WaitingReady", "claims": 2}})).await;
    wire.falls_silent();
    play.step(
        json!({"until": {"job": "train", "finished": true, "state": "Released", "claims": 0, "within": 240}}),
    )
    .await;
    let counted = [&wire.counts.swallowed, &wire.counts.accepted_later].map(|c| c.load(Ordering::Relaxed));
    assert!(!counted.contains(&0), "data that was lost, and connections made anew: {counted:?}");
    play.left_nothing_and_did_nothing_twice().await;
    play.end();
}
