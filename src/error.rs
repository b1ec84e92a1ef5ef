//! Errors of actions on the cluster, and what to do about them.
//!
//! Each error names the action and the object, has its cause as `source`, and knows its class. [`Error::in_full`]
//! shows all of it in one line.

use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

/// An action on the cluster that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with an error, or could not be reached.
    #[error("{action} {object}")]
    Api {
        /// The action, as in "creating NodeClaim".
        action: &'static str,
        /// Name of the object, with its namespace if it has one.
        object: String,
        /// The API server's answer, or why there is none.
        #[source]
        cause: FailedCall,
    },
    /// The API server did not answer in time; the write may have happened anyway.
    #[error("{action} {object}: no answer within {limit:?}")]
    Timeout {
        /// The action.
        action: &'static str,
        /// Name of the object, with its namespace if it has one.
        object: String,
        /// How long the call waited.
        limit: Duration,
    },
    /// Someone else changed the object first. Read it again and decide anew.
    #[error("{action} {object}: it changed meanwhile")]
    Conflict {
        /// The action.
        action: &'static str,
        /// Name of the object, with its namespace if it has one.
        object: String,
    },
}

/// Why a call to the API server failed.
#[derive(Clone, Debug)]
pub struct FailedCall(Arc<kube::Error>);

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_words(&self.0))
    }
}

impl StdError for FailedCall {
    /// The client's text includes its first cause, so this is the second.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()?.source()
    }
}

impl AsRef<kube::Error> for FailedCall {
    fn as_ref(&self) -> &kube::Error {
        &self.0
    }
}

/// How to react to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Reconcile again at once.
    Again,
    /// Try again later, each time a little later.
    BackOff,
    /// It will not work until someone changes something.
    Refused,
}

/// The API server's message without the whole Status; or why there is no answer.
pub fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("{} ({})", status.reason, status.code)
        }
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}

/// An error and its causes in one line.
struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        causes(self.0).try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// The innermost cause of an error, which is what a user can act on.
pub fn root_of(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// The causes of an error, outermost first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(error.source(), |&cause| cause.source())
}

/// Whether the API server gave no answer: it could not be reached, or a proxy answered in its place.
pub fn is_unanswered(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 502..=504),
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

impl Error {
    /// The error with its cause, in one line.
    pub fn in_full(&self) -> impl fmt::Display {
        Chain(self)
    }

    /// Whether the API server could not be reached. A timeout does not count: it may be the fault of that call alone.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if is_unanswered(cause.as_ref()))
    }

    /// Wraps an error of the API server; a lost race becomes [`Error::Conflict`].
    pub fn api(action: &'static str, object: impl Into<String>, cause: kube::Error) -> Self {
        let object = object.into();
        match &cause {
            kube::Error::Api(status) if status.code == 409 && !status.is_already_exists() => {
                Self::Conflict { action, object }
            }
            _ => Self::Api { action, object, cause: FailedCall(Arc::new(cause)) },
        }
    }

    /// How to react to it.
    pub fn class(&self) -> Class {
        match self {
            Self::Conflict { .. } => Class::Again,
            Self::Timeout { .. } => Class::BackOff,
            Self::Api { cause, .. } => match cause.as_ref() {
                kube::Error::Api(status) if matches!(status.code, 400 | 403 | 404 | 405 | 422) => {
                    Class::Refused
                }
                _ => Class::BackOff,
            },
        }
    }

    /// Whether a role or a policy forbids it: HTTP 403.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether it says that this object is gone: HTTP 404.
    pub fn is_gone(&self, gone: &str) -> bool {
        matches!(self, Self::Api { object, .. } if object == gone) && self.code() == Some(404)
    }

    /// The HTTP status, where the API server answered.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { cause, .. } => match cause.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Conflict { .. } => Some(409),
            Self::Timeout { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_gone_means_the_object_itself_and_no_other() {
        let answer = |code| {
            let status = kube::core::Status::failure("", "").with_code(code).boxed();
            Error::api("confirming the journal of Workload", "team/train", kube::Error::Api(status))
        };
        assert!(answer(404).is_gone("team/train"));
        assert!(!answer(404).is_gone("team/other") && !answer(500).is_gone("team/train"));
    }

    #[test]
    fn each_cause_appears_once_in_an_error_chain() {
        let connecting = anyhow::Error::msg("Connection refused").context("client error (Connect)");
        let cause = kube::Error::Service(connecting.into_boxed_dyn_error());
        let error = Error::api("creating NodeClaim", "c", cause);
        let text = "creating NodeClaim c: ServiceError: client error (Connect): Connection refused";
        assert_eq!(error.in_full().to_string(), text);
        assert_eq!(format!("{:#}", anyhow::Error::new(error)), text);
    }
}
