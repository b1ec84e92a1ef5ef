//! The trace settings from `--otlp-endpoint` and the standard `OTEL_…` variables.
//!
//! The exporter reads endpoint, headers, compression and time limits from the environment itself. This file reads
//! the other variables.

use opentelemetry_sdk::trace::Sampler;
use std::path::PathBuf;
use std::time::Duration;

/// The path where OTLP over HTTP accepts traces.
const TRACES_PATH: &str = "/v1/traces";

/// How traces are exported.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The collector's URL if a flag gives it; otherwise the exporter reads the environment.
    pub endpoint: Option<String>,
    /// The protocol.
    pub transport: Transport,
    /// Whether the collector is verified by TLS.
    pub tls: bool,
    /// Which traces are kept.
    pub sampler: Sampler,
    /// The most spans that may wait.
    pub queue: usize,
    /// The most spans sent at once.
    pub batch: usize,
    /// The longest time that a span waits for others to join it.
    pub delay: Duration,
    /// The longest time that one export may take, retries included.
    pub limit: Duration,
    /// PEM file with the authorities that the collector's certificate may be signed by.
    pub authorities: Option<PathBuf>,
    /// PEM files with our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The OTLP transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// gRPC.
    Grpc,
    /// Protocol buffers in HTTP requests.
    Http,
}

impl Transport {
    /// The address that spans are sent to at this URL.
    fn endpoint(self, url: &str) -> String {
        match (self, url.trim_end_matches('/')) {
            (Self::Grpc, _) => url.to_owned(),
            (Self::Http, whole) if whole.ends_with(TRACES_PATH) => whole.to_owned(),
            (Self::Http, base) => format!("{base}{TRACES_PATH}"),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {value:?} {what}")]
pub struct BadSetting {
    name: String,
    value: String,
    what: String,
}

impl BadSetting {
    pub(super) fn new(name: &str, value: &str, what: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.to_owned(), what: what.into() }
    }

    /// Whether it came from the command line, and not from the environment.
    pub fn is_of_flag(&self) -> bool {
        self.name.starts_with("--")
    }
}

impl TraceSettings {
    /// Reads the settings; `None` if no collector is configured, or tracing is switched off.
    pub fn read(
        flag: Option<&str>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BadSetting> {
        let env = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let first = |names: [&'static str; 2]| names.into_iter().find_map(|n| env(n).map(|v| (n, v)));
        let of_signal = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let off = env("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
            || env("OTEL_TRACES_EXPORTER").is_some_and(|v| v == "none");
        let named = flag.map(|f| ("--otlp-endpoint", f.to_owned())).or_else(|| first(of_signal));
        let Some((name, endpoint)) = named.filter(|_| !off) else { return Ok(None) };
        let uri: http::Uri = endpoint
            .parse()
            .map_err(|_| BadSetting::new(name, &endpoint, "is not a valid URL; write http://host:4317"))?;
        if flag.is_some() && !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(BadSetting::new(
                name,
                &endpoint,
                "is not a valid URL; write http://host:4317 or https://…",
            ));
        }
        let protocol = first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
        let transport = transport(protocol, uri.port_u16())?;
        let path = |names| first(names).map(|(_, path)| PathBuf::from(path));
        let certificate =
            path(["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"]);
        let key = path(["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"]);
        let number = |name: &str, default: u64| match env(name) {
            None => Ok(default),
            Some(value) => match value.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(BadSetting::new(name, &value, "is not a valid number above 0")),
            },
        };
        let size = |name, default| Ok(usize::try_from(number(name, default)?).unwrap_or(usize::MAX));
        Ok(Some(Self {
            endpoint: flag.map(|url| transport.endpoint(url)),
            transport,
            tls: uri.scheme_str() == Some("https"),
            sampler: sampler(&env)?,
            queue: size("OTEL_BSP_MAX_QUEUE_SIZE", 8_192)?,
            batch: size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?,
            delay: Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", 1_000)?),
            limit: Duration::from_millis(number("OTEL_BSP_EXPORT_TIMEOUT", 30_000)?),
            authorities: path(["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"]),
            identity: certificate.zip(key),
        }))
    }
}

/// The transport that a variable names; without one, that of the port.
fn transport(named: Option<(&str, String)>, port: Option<u16>) -> Result<Transport, BadSetting> {
    match named {
        None if port == Some(4317) => Ok(Transport::Grpc),
        None => Ok(Transport::Http),
        Some((name, value)) => match value.as_str() {
            "grpc" => Ok(Transport::Grpc),
            "http/protobuf" => Ok(Transport::Http),
            _ => Err(BadSetting::new(name, &value, "is not spoken; use grpc or http/protobuf")),
        },
    }
}

/// A trace has no parent, so a parent-based sampler is the one that it names for roots.
fn sampler(env: &impl Fn(&str) -> Option<String>) -> Result<Sampler, BadSetting> {
    let name = "OTEL_TRACES_SAMPLER";
    let Some(value) = env(name) else { return Ok(Sampler::AlwaysOn) };
    match value.trim_start_matches("parentbased_") {
        "always_on" => Ok(Sampler::AlwaysOn),
        "always_off" => Ok(Sampler::AlwaysOff),
        "traceidratio" => {
            let name = "OTEL_TRACES_SAMPLER_ARG";
            let text = env(name).unwrap_or_else(|| "1.0".to_owned());
            match text.parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Sampler::TraceIdRatioBased(ratio)),
                _ => Err(BadSetting::new(name, &text, "is not a share; write a number from 0.0 to 1.0")),
            }
        }
        _ => Err(BadSetting::new(
            name,
            &value,
            "is not a sampler; use always_on, always_off or traceidratio, also with parentbased_ before it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flag: Option<&str>, env: &[(&str, &str)]) -> Result<Option<TraceSettings>, String> {
        let find = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        TraceSettings::read(flag, find).map_err(|e| e.to_string())
    }

    #[test]
    fn without_an_endpoint_or_with_tracing_switched_off_nothing_is_exported() {
        assert!(read(None, &[]).unwrap().is_none());
        assert!(read(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        let flag = Some("http://jaeger:4317");
        assert!(read(flag, &[("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(read(flag, &[("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
    }

    #[test]
    fn the_protocol_is_the_one_named_or_that_of_the_port() {
        let of = |flag, env: &[_]| {
            let settings = read(Some(flag), env).unwrap().unwrap();
            (settings.transport, settings.endpoint.unwrap())
        };
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let grpc = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert_eq!(of("http://j:4317", &[]), (Transport::Grpc, "http://j:4317".into()));
        assert_eq!(of("http://j:4318", &[]), (Transport::Http, "http://j:4318/v1/traces".into()));
        assert_eq!(of("http://j:4317/", &[http]), (Transport::Http, "http://j:4317/v1/traces".into()));
        assert_eq!(of("http://j:4318/v1/traces/", &[]), (Transport::Http, "http://j:4318/v1/traces".into()));
        assert_eq!(of("https://j", &[http, grpc]).0, Transport::Grpc);
        let settings = read(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://j:4318")]).unwrap().unwrap();
        assert_eq!((settings.transport, settings.endpoint), (Transport::Http, None));
    }

    #[test]
    fn bad_settings_are_refused_with_advice() {
        let flag = Some("http://j:4317");
        for (bad, words) in [
            (read(Some("jaeger"), &[]), "write http://host:4317"),
            (read(Some("::"), &[]), "is not a valid URL"),
            (read(flag, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]), "use grpc or http/protobuf"),
            (read(flag, &[("OTEL_TRACES_SAMPLER", "xray")]), "use always_on"),
            (
                read(flag, &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "7")]),
                "from 0.0 to 1.0",
            ),
            (read(flag, &[("OTEL_BSP_MAX_QUEUE_SIZE", "0")]), "is not a valid number above 0"),
        ] {
            let error = bad.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn every_standard_sampler_is_understood() {
        let of =
            |name| read(Some("http://j:4317"), &[("OTEL_TRACES_SAMPLER", name)]).unwrap().unwrap().sampler;
        assert!(matches!(of("parentbased_always_on"), Sampler::AlwaysOn));
        assert!(matches!(of("always_off"), Sampler::AlwaysOff));
        assert!(matches!(of("parentbased_traceidratio"), Sampler::TraceIdRatioBased(_)));
    }
}
