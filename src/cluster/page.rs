//! Reads a page by HTTP, with limits on time and size.

use crate::error::root_of;
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;

/// The largest page that is read, in bytes: some 1,400 instance types in six zones take 6 MiB.
const LARGEST: usize = 32 * 1024 * 1024;
/// The longest time that a page may take.
const LONGEST: Duration = Duration::from_secs(10);

/// A page that is read repeatedly.
#[derive(Clone, Debug)]
pub struct Page {
    url: Uri,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

/// Why a page was not read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// There was no answer.
    #[error("{}", root_of(.0))]
    Unanswered(#[source] hyper_util::client::legacy::Error),
    /// There was only a part of an answer.
    #[error(transparent)]
    BrokenOff(Box<dyn std::error::Error + Send + Sync>),
    /// The answer was not a page.
    #[error("the answer was {0}")]
    Status(http::StatusCode),
    /// The page is larger than any real one.
    #[error("the page is larger than {} MiB", LARGEST / (1024 * 1024))]
    TooLarge,
    /// It took too long.
    #[error("no answer within {} s", LONGEST.as_secs())]
    TooSlow,
    /// It is not text.
    #[error("the page is not text")]
    NoText,
}

impl Page {
    /// The page at a URL.
    ///
    /// # Errors
    /// The URL is not one of HTTP, or the system's certificates cannot be read.
    pub fn at(url: &str) -> Result<Self, String> {
        let url: Uri = url.parse().map_err(|e| format!("{e}"))?;
        let connector = HttpsConnectorBuilder::new();
        let connector = match url.scheme_str() {
            Some("https") => connector.with_native_roots().map_err(|e| e.to_string())?,
            Some("http") => connector.with_tls_config(
                rustls::ClientConfig::builder()
                    .with_root_certificates(rustls::RootCertStore::empty())
                    .with_no_client_auth(),
            ),
            _ => return Err("it begins neither with http:// nor with https://".to_owned()),
        };
        let connector = connector.https_or_http().enable_http1().build();
        Ok(Self { url, client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// Reads the page.
    ///
    /// # Errors
    /// It was not answered, not in time, or is not a text of acceptable size.
    pub async fn read(&self) -> Result<String, PageError> {
        tokio::time::timeout(LONGEST, self.answer()).await.map_err(|_| PageError::TooSlow)?
    }

    async fn answer(&self) -> Result<String, PageError> {
        let answer = self.client.get(self.url.clone()).await.map_err(PageError::Unanswered)?;
        if !answer.status().is_success() {
            return Err(PageError::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                PageError::TooLarge
            } else {
                PageError::BrokenOff(e)
            }
        })?;
        String::from_utf8(body.to_bytes().into()).map_err(|_| PageError::NoText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use http::StatusCode;

    /// Serves pages on a free local port; returns the root's URL.
    async fn server() -> String {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/metrics", get(|| async { "a 1\n" }))
            .route("/broken", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
            .route("/huge", get(|| async { vec![b'a'; LARGEST + 1] }))
            .route("/binary", get(|| async { vec![0xff_u8, 0xfe] }))
            .route("/slow", get(std::future::pending::<&str>));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    #[tokio::test]
    async fn a_page_is_read_and_a_missing_broken_or_huge_one_is_an_error() {
        let root = server().await;
        let read = async |path: &str| Page::at(&format!("{root}{path}")).unwrap().read().await;
        assert_eq!(read("/metrics").await.unwrap(), "a 1\n");
        for (path, words) in [
            ("/nothing", "the answer was 404 Not Found"),
            ("/broken", "the answer was 500 Internal Server Error"),
            ("/huge", "the page is larger than 32 MiB"),
            ("/binary", "the page is not text"),
        ] {
            assert_eq!(read(path).await.unwrap_err().to_string(), words);
        }
        let gone = Page::at("http://127.0.0.1:9").unwrap().read().await.unwrap_err();
        assert!(gone.to_string().contains("refused"), "{gone}");
        for url in ["karpenter:8080", "ftp://karpenter/", ""] {
            assert!(Page::at(url).is_err(), "{url}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_takes_too_long_is_given_up() {
        let root = server().await;
        let error = Page::at(&format!("{root}/slow")).unwrap().read().await.unwrap_err();
        assert_eq!(error.to_string(), "no answer within 10 s");
    }
}
