//! The port that serves the demo's cluster to kubectl and its board to browsers.

use super::super::{CliError, print};
use crate::app::board;
use crate::controllers::board::BoardSnapshot;
use crate::sim::cluster::SimCluster;
use setu_sim::http;
use std::fs::OpenOptions;
use std::future::IntoFuture as _;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// A bound port that does not serve yet.
pub struct DemoServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl DemoServer {
    /// Binds the port.
    pub fn bind(address: SocketAddr) -> Result<Self, CliError> {
        let invalid = |why: &str| CliError::Invalid(format!("--serve {address}: {why}"));
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

    /// Starts to serve and prints how to connect. Keep the returned value for as long as the port serves. Must be
    /// called within a tokio runtime.
    pub fn serve(self, cluster: &SimCluster) -> Result<Option<Kubeconfig>, CliError> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|e| CliError::Failed(format!("--serve {}: {e}", self.address)))?;
        let (acting, last) = (cluster.board(), Arc::new(Mutex::new(BoardSnapshot::default())));
        // While no replica acts, the board stays as it was.
        let objects = move || {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(objects) = acting() {
                *last = objects;
            }
            last.clone()
        };
        let api = http::router(cluster.server.clone(), CancellationToken::new());
        // The task ends with the runtime.
        tokio::spawn(axum::serve(listener, board::routes(objects).merge(api)).into_future());
        let kubeconfig = Kubeconfig::write(self.address);
        let own = kubeconfig.as_ref().map_or_else(String::new, |Kubeconfig(path)| {
            let path = path.display();
            format!(
                "With Setu's own commands:\n\n  export KUBECONFIG={path}\n  setu inspect -A --finished\n\n"
            )
        });
        print(&format!(
            "Serving the cluster until Ctrl-C. In another terminal:\n\n  \
             kubectl --server http://{address} get workloads,nodeclaims,nodes -A\n  \
             kubectl --server http://{address} get events -A -w\n  \
             kubectl --server http://{address} apply --validate=false -f examples/setup -f examples/gang-of-four.yaml\n\n\
             {own}In a browser: http://{address}/board\n\n",
            address = self.address
        ));
        Ok(kubeconfig)
    }
}

/// A kubeconfig for the port, in a file that only this user can read. Dropping the value deletes the file.
pub struct Kubeconfig(PathBuf);

impl Kubeconfig {
    /// Writes it, if possible. An existing file may belong to another user and is left alone.
    fn write(address: SocketAddr) -> Option<Self> {
        let name = format!("setu-demo-{}-{}.json", address.port(), std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
        let kubeconfig = Self(path);
        file.write_all(http::kubeconfig(address).as_bytes()).ok()?;
        Some(kubeconfig)
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        // Something else may have deleted the file already.
        let _ = std::fs::remove_file(&self.0);
    }
}
