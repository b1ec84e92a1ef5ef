//! A page over HTTP, in the place of Karpenter's metrics.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A page that says what stands in it, and how often it was asked for.
#[derive(Clone, Default)]
pub struct Served {
    page: Arc<Mutex<String>>,
    pub asked: Arc<AtomicUsize>,
}

impl Served {
    /// What it says from now on.
    pub fn says(&self, page: String) {
        *self.page.lock().unwrap() = page;
    }

    /// Serves it until the process ends; an empty one is an error of the server. Returns where.
    pub fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let page = served.page.lock().unwrap().clone();
                let status = if page.is_empty() { "500 Internal Server Error" } else { "200 OK" };
                let length = page.len();
                let head =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
                let _ = stream.write_all((head + &page).as_bytes());
                served.asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        format!("http://{address}/metrics")
    }
}

/// Where this page is served.
pub fn served(page: String) -> String {
    let served = Served::default();
    served.says(page);
    served.start()
}
