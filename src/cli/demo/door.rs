//! The port on which the demo's cluster is served to kubectl, and its board to browsers.

use super::super::{Failure, print};
use crate::app::board;
use crate::controllers::board::BoardSnapshot;
use crate::sim::cluster::Cluster;
use crate::sim::http;
use std::future::IntoFuture as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// An open port that nobody answers yet.
pub struct Door {
    listener: TcpListener,
    address: SocketAddr,
}

impl Door {
    /// Takes the port.
    pub fn open(address: SocketAddr) -> Result<Self, Failure> {
        let invalid = |why: &str| Failure::Invalid(format!("--serve {address}: {why}"));
        if !address.ip().is_loopback() {
            return Err(invalid(
                "whoever reaches the port may do everything; give an address of this machine alone, such as 127.0.0.1:8080",
            ));
        }
        let listener = TcpListener::bind(address).map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => invalid("the port is taken; give another one, or 0 for any"),
            _ => invalid(&e.to_string()),
        })?;
        listener.set_nonblocking(true).map_err(|e| invalid(&e.to_string()))?;
        let address = listener.local_addr().map_err(|e| invalid(&e.to_string()))?;
        Ok(Self { listener, address })
    }

    /// Answers from now on, and says how to knock. Must be called within a tokio runtime.
    pub fn serve(self, cluster: &Cluster) -> Result<(), Failure> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|e| Failure::Failed(format!("--serve {}: {e}", self.address)))?;
        let (acting, last) = (cluster.board(), Arc::new(Mutex::new(BoardSnapshot::default())));
        // While no replica acts, the board stays as it was.
        let snapshot = move || {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(snapshot) = acting() {
                *last = snapshot;
            }
            last.clone()
        };
        let api = http::router(cluster.server.clone(), CancellationToken::new());
        // It ends with the runtime.
        tokio::spawn(axum::serve(listener, board::routes(snapshot).merge(api)).into_future());
        let own = kubeconfig(self.address).map_or_else(String::new, |path| {
            format!("With Setu's own commands:\n\n  export KUBECONFIG={path}\n  setu inspect -A\n\n")
        });
        print(&format!(
            "Serving the cluster until Ctrl-C. In another terminal:\n\n  \
             kubectl --server http://{address} get workloads,nodeclaims,nodes -A\n  \
             kubectl --server http://{address} get events -A -w\n  \
             kubectl --server http://{address} apply --validate=false -f examples/setup -f examples/gang-of-four.yaml\n\n\
             {own}In a browser: http://{address}/board\n\n",
            address = self.address
        ));
        Ok(())
    }
}

/// Writes a kubeconfig that leads to an address; returns its path, if there is a place for it.
fn kubeconfig(address: SocketAddr) -> Option<String> {
    let path = std::env::temp_dir().join(format!("setu-demo-{}.json", address.port()));
    std::fs::write(&path, http::kubeconfig(address)).ok()?;
    Some(path.display().to_string())
}
