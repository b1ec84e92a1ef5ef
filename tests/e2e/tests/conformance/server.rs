//! One interface to the servers under comparison: the real one over HTTPS, the embedded one by function
//! calls.

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use setu_clock::Clock;
use setu_sim::api::{ApiServer, Caller, ServerOptions, ServerResponse};
use std::time::Duration;

/// Longer than any answer of a healthy server takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server to compare.
#[derive(Clone)]
pub enum Server {
    Real(Client),
    Embedded(ApiServer),
}

/// A server's answer.
pub enum Reply {
    Whole {
        code: u16,
        body: Value,
    },
    /// The lines of a watch.
    Stream(BoxStream<'static, Result<Value>>),
}

impl Server {
    /// An embedded server after a compaction, so that some versions are too old.
    pub fn embedded() -> Self {
        let clock = Clock::wall();
        let server = ApiServer::new(ServerOptions { seed: 1, clock, replicas: 1, history: 10_000 });
        server.compact();
        Self::Embedded(server)
    }

    /// The server for the next sequence: the same real one, or a new embedded one.
    pub fn anew(&self) -> Self {
        match self {
            Self::Real(client) => Self::Real(client.clone()),
            Self::Embedded(_) => Self::embedded(),
        }
    }

    pub async fn send(&self, request: Request<Vec<u8>>, watch: bool) -> Result<Reply> {
        let what = format!("{} {}", request.method(), request.uri());
        let answer = tokio::time::timeout(TIMEOUT, async {
            match self {
                Self::Real(client) => real(client, request, watch).await,
                Self::Embedded(server) => embedded(server, request),
            }
        });
        answer.await.with_context(|| format!("no answer to {what}"))?.with_context(|| what)
    }
}

async fn real(client: &Client, request: Request<Vec<u8>>, watch: bool) -> Result<Reply> {
    let answer = client.send(request.map(Body::from)).await.context("sending")?;
    let (parts, body) = answer.into_parts();
    if watch && parts.status.is_success() {
        let lines = lines(body.into_data_stream().map_err(anyhow::Error::from).boxed());
        return Ok(Reply::Stream(lines));
    }
    let body = body.collect_bytes().await.context("reading the answer")?;
    whole(parts.status.as_u16(), &body)
}

fn embedded(server: &ApiServer, request: Request<Vec<u8>>) -> Result<Reply> {
    let caller = Caller { user: "admin".into(), replica: 0 };
    match server.handle(&caller, &request.map(bytes::Bytes::from)) {
        ServerResponse::Whole(answer) => whole(answer.status().as_u16(), answer.body()),
        ServerResponse::Watch(frames) => {
            let lines =
                frames.map(|frame| serde_json::from_slice(&frame.line).context("a frame that is no JSON"));
            Ok(Reply::Stream(lines.boxed()))
        }
    }
}

fn whole(code: u16, body: &[u8]) -> Result<Reply> {
    let text = std::str::from_utf8(body).context("an answer that is no text")?;
    let body = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.trim().to_owned()));
    Ok(Reply::Whole { code, body })
}

/// Cuts a byte stream into JSON lines.
fn lines(chunks: BoxStream<'static, Result<bytes::Bytes>>) -> BoxStream<'static, Result<Value>> {
    let state = (chunks, Vec::new());
    futures::stream::try_unfold(state, |(mut chunks, mut buffer)| async move {
        loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let value = serde_json::from_slice(&line).context("a line of a watch that is no JSON")?;
                return Ok(Some((value, (chunks, buffer))));
            }
            match chunks.next().await {
                Some(chunk) => buffer.extend_from_slice(&chunk?),
                None if buffer.is_empty() => return Ok(None),
                None => bail!("a watch ended within a line"),
            }
        }
    })
    .boxed()
}
