//! Serves a Karpenter metrics page that a scenario sets.

use anyhow::Result;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Serves one page until the process ends.
pub struct Page {
    address: SocketAddr,
    said: Arc<Mutex<Said>>,
}

/// The page, and how often any version of it was read.
#[derive(Default)]
struct Said {
    page: String,
    reads: u64,
}

impl Page {
    /// Serves an empty page on a free port.
    ///
    /// # Errors
    /// There is no such port.
    pub fn serve() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let said = Arc::<Mutex<Said>>::default();
        let served = Arc::clone(&said);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that disconnects will read it again.
                let _ = answer(stream, &served);
            }
        });
        Ok(Self { address, said })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Sets the page, and returns the number of reads so far.
    pub fn set(&self, page: &str) -> u64 {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        page.clone_into(&mut said.page);
        said.reads
    }

    /// The number of reads so far.
    pub fn reads(&self) -> u64 {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).reads
    }
}

fn answer(mut stream: TcpStream, said: &Mutex<Said>) -> std::io::Result<()> {
    let head = BufReader::new(stream.try_clone()?).lines();
    for line in head {
        if line?.is_empty() {
            break;
        }
    }
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let length = said.page.len();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{}", said.page)?;
    stream.flush()?;
    said.reads += 1;
    Ok(())
}
