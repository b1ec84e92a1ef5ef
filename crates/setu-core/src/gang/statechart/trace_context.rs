//! Ids of traces and spans, derived so that every replica computes the same ones.

use super::reservation::AdmissionId;
use crate::digest::hash;
use std::fmt;

/// A trace and its root span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace.
    pub trace: [u8; 16],
    /// Id of the root span.
    pub root: [u8; 8],
}

impl TraceContext {
    /// The trace of an admission of the Workload with this UID. `resumed` is the number of the transition that resumed an
    /// ended admission; 0 in its first trace.
    pub fn of(uid: &str, admission: &AdmissionId, resumed: u64) -> Self {
        let resumed = resumed.to_string();
        let mut about = vec![uid, &admission.0];
        if resumed != "0" {
            about.push(&resumed);
        }
        let id_of = |what| [vec![what], about.clone()].concat();
        Self { trace: id(&id_of("trace")), root: id(&id_of("root")) }
    }

    /// Parses a W3C `traceparent`; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, root, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let well_formed = version.len() == 2
            && flags.len() == 2
            && !version.eq_ignore_ascii_case("ff")
            && (version != "00" || parts.next().is_none());
        let context = Self { trace: unhex(trace)?, root: unhex(root)? };
        (well_formed && context.trace != [0; 16] && context.root != [0; 8]).then_some(context)
    }

    /// The id of a span of this trace, derived from its subject.
    pub(in crate::gang) fn span(&self, about: &[&str]) -> [u8; 8] {
        let trace = self.to_string();
        let mut parts = vec!["span", &trace];
        parts.extend(about);
        id(&parts)
    }

    /// The id of the span of the state that this transition entered.
    pub(in crate::gang) fn state(&self, seq: u64) -> [u8; 8] {
        self.span(&["state", &seq.to_string()])
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex =
            |f: &mut fmt::Formatter<'_>, bytes: &[u8]| bytes.iter().try_for_each(|b| write!(f, "{b:02x}"));
        f.write_str("00-")?;
        hex(f, &self.trace)?;
        f.write_str("-")?;
        hex(f, &self.root)?;
        f.write_str("-01")
    }
}

/// The first bytes of a hash, as an id.
fn id<const N: usize>(parts: &[&str]) -> [u8; N] {
    let mut id = [0; N];
    id.iter_mut().zip(hash(parts)).for_each(|(to, from)| *to = from);
    id
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let mut bytes = [0; N];
    if !lower || text.len() != 2 * N {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_traceparent_is_parsed() {
        let context = TraceContext::of("uid", &AdmissionId("1-0-a".into()), 0);
        let text = context.to_string();
        assert_eq!(TraceContext::parse(&text), Some(context));
        assert_eq!(TraceContext::parse(&text.replacen("00-", "01-", 1)), Some(context));
        let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
        let long = format!("{text}-x");
        let upper = text.to_uppercase();
        let other = text.replacen("00-", "ff-", 1);
        for bad in ["", "00", "00-1-2-01", "00-é-é-é", &zeros, &long, &upper, &other] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
