//! Serves a metrics page in place of Karpenter's.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A metric line of an offering: `available` or `price_estimate` of an instance type, capacity type and zone.
pub fn offer(metric: &str, [instance_type, kind, zone]: [&str; 3], value: impl Display) -> String {
    format!(
        "karpenter_cloudprovider_instance_type_offering_{metric}{{instance_type=\"{instance_type}\",\
         capacity_type=\"{kind}\",zone=\"{zone}\"}} {value}\n"
    )
}

/// The metric lines of an offering that is available at this price.
pub fn priced(of: [&str; 3], price: impl Display) -> String {
    offer("available", of, 1) + &offer("price_estimate", of, price)
}

/// A page with settable content that counts its requests.
#[derive(Clone, Default)]
pub struct Served {
    page: Arc<Mutex<String>>,
    pub asked: Arc<AtomicUsize>,
}

impl Served {
    /// Sets its content.
    pub fn says(&self, page: String) {
        *self.page.lock().unwrap() = page;
    }

    /// Serves it until the process ends; an empty page is a server error. Returns the URL.
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

/// The URL of this page.
pub fn served(page: String) -> String {
    let served = Served::default();
    served.says(page);
    served.start()
}
