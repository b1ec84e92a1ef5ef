//! Reads: single objects, lists with pages and versions, and watches.

use super::body::QueryParameters;
use super::items::ServedList;
use super::preconditions::parsed_version;
use super::route::RequestTarget;
use super::select::ObjectSelector;
use super::status::{FieldError, Status};
use super::{ApiServer, Caller, ServerResponse, Watch};
use crate::values::{name, namespace};
use serde_json::{Value, json};
use std::sync::Arc;

/// The version that a read requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WantedVersion {
    /// The newest.
    Newest,
    /// Any version that the replica has.
    Any,
    /// The replica's version, which must not be older than this.
    NotOlder(u64),
    /// Exactly this version.
    Exact(u64),
}

fn version(text: &str) -> Result<u64, String> {
    parsed_version(text).map_err(|why| format!("resourceVersion: Invalid value: {text:?}: {why}"))
}

fn is_set(query: &QueryParameters, key: &str) -> bool {
    query.get(key).is_some_and(|v| matches!(v.as_str(), "true" | "1"))
}

fn given<'q>(query: &'q QueryParameters, key: &str) -> &'q str {
    query.get(key).map_or("", String::as_str)
}

/// One object, from the store or from the replica's cache.
pub fn one(
    server: &ApiServer,
    caller: &Caller,
    target: &RequestTarget,
    (name, query): (&str, &QueryParameters),
) -> Result<Arc<Value>, Status> {
    let key = (target.namespace.clone().unwrap_or_default(), name.to_owned());
    let text = given(query, "resourceVersion");
    let found = if text.is_empty() {
        server.read(target.kind, &key)
    } else {
        let version =
            version(text).map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
        let store = server.store();
        let newest = store.version_of(caller.replica);
        if version > newest {
            return Err(Status::too_new(version, newest));
        }
        store.cached_one(target.kind, &key, caller.replica)
    };
    found.ok_or_else(|| Status::not_found(target.kind, name))
}

/// The selector of a list or watch.
pub fn selector(target: &RequestTarget, query: &QueryParameters) -> Result<ObjectSelector, Status> {
    let mut fields = given(query, "fieldSelector").to_owned();
    if let Some(name) = &target.name {
        fields = format!("metadata.name={name},{fields}");
    }
    ObjectSelector::parse(target.kind, target.namespace.as_deref(), given(query, "labelSelector"), &fields)
}

/// Answers a list or a watch.
pub fn list_or_watch(
    server: &ApiServer,
    caller: &Caller,
    target: &RequestTarget,
    query: &QueryParameters,
) -> Result<ServerResponse, Status> {
    let selector = selector(target, query)?;
    check_options(query)?;
    if is_set(query, "watch") {
        watch(server, caller, target, (query, selector))
    } else {
        page(server, caller, target, (query, &selector))
    }
}

fn check_options(query: &QueryParameters) -> Result<(), Status> {
    let matching = given(query, "resourceVersionMatch");
    let initial = query.contains_key("sendInitialEvents");
    let refuse = |field: &str, why: &str| {
        Err(Status::invalid_options("ListOptions", FieldError::forbidden(field, why)))
    };
    if is_set(query, "watch") {
        if initial && matching != "NotOlderThan" {
            return refuse(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        if !initial && !matching.is_empty() {
            return refuse(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        return Ok(());
    }
    if initial {
        return refuse("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if matching.is_empty() {
        return Ok(());
    }
    if given(query, "resourceVersion").is_empty() {
        return refuse(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        );
    }
    if !given(query, "continue").is_empty() {
        return refuse("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided");
    }
    let known = ["Exact", "NotOlderThan", ""];
    if !known.contains(&matching) {
        let violation = FieldError::unsupported("resourceVersionMatch", &json!(matching), &known);
        return Err(Status::invalid_options("ListOptions", violation));
    }
    if matching == "Exact" && given(query, "resourceVersion") == "0" {
        return refuse(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        );
    }
    Ok(())
}

fn watch(
    server: &ApiServer,
    caller: &Caller,
    target: &RequestTarget,
    (query, selector): (&QueryParameters, ObjectSelector),
) -> Result<ServerResponse, Status> {
    let text = given(query, "resourceVersion");
    let from = if text.is_empty() { 0 } else { version(text).map_err(Status::internal)? };
    let view = (selector, target.form);
    let mut store = server.store();
    let frames = if is_set(query, "sendInitialEvents") {
        store.watch_from_now(target.kind, view, caller.replica, is_set(query, "allowWatchBookmarks"))
    } else if from == 0 && !query.contains_key("sendInitialEvents") {
        store.watch_from_now(target.kind, view, caller.replica, false)
    } else {
        store.watch(target.kind, view, caller.replica, from)
    };
    Ok(ServerResponse::Watch(Watch {
        kind: target.kind,
        form: target.form,
        replica: caller.replica,
        frames,
        table: None,
    }))
}

/// The continue token: the version of the list, and the last key that was returned.
fn token(version: u64, last: &Value) -> String {
    format!("v1_{version}_{}_{}", namespace(last), name(last))
}

fn parse_token(text: &str) -> Option<(u64, (String, String))> {
    let mut parts = text.strip_prefix("v1_")?.split('_');
    let (version, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some((version.parse().ok()?, (namespace.to_owned(), name.to_owned())))
}

fn page(
    server: &ApiServer,
    caller: &Caller,
    target: &RequestTarget,
    (query, selector): (&QueryParameters, &ObjectSelector),
) -> Result<ServerResponse, Status> {
    let text = given(query, "resourceVersion");
    let mut wanted = match text {
        "" => WantedVersion::Newest,
        "0" => WantedVersion::Any,
        text => {
            let version = version(text)
                .map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
            let exact = given(query, "resourceVersionMatch") == "Exact";
            if exact { WantedVersion::Exact(version) } else { WantedVersion::NotOlder(version) }
        }
    };
    let mut after = None;
    let going_on = given(query, "continue");
    if !going_on.is_empty() {
        if !matches!(wanted, WantedVersion::Newest | WantedVersion::Any) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let why = "invalid continue token: continue key is not valid";
        let (version, key) = parse_token(going_on).ok_or_else(|| Status::bad_request(why))?;
        (wanted, after) = (WantedVersion::Exact(version), Some(key));
    }
    let (objects, current) = read(server, caller, target, wanted)?;
    // Objects are sorted by key.
    let done = after.as_ref().map_or(0, |(of, last)| {
        objects.partition_point(|object| (namespace(object), name(object)) <= (of.as_str(), last.as_str()))
    });
    let mut chosen = objects.iter().skip(done).filter(|object| selector.matches(object));
    let limit: usize = given(query, "limit").parse().unwrap_or_default();
    // Lists from the cache are not split into pages.
    let limit = if limit == 0 || wanted == WantedVersion::Any { usize::MAX } else { limit };
    let shown: Vec<&Arc<Value>> = chosen.by_ref().take(limit).collect();
    let is_more = chosen.next().is_some();
    let going_on = shown.last().filter(|_| is_more).map(|last| token(current, last));
    let mut answer = ServedList::new(target, shown, current);
    if let Some(token) = going_on {
        answer.goes_on(&token, selector.matches_all().then(|| chosen.count() + 1));
    }
    Ok(ServerResponse::json(200, &answer))
}

fn read(
    server: &ApiServer,
    caller: &Caller,
    target: &RequestTarget,
    wanted: WantedVersion,
) -> Result<(Vec<Arc<Value>>, u64), Status> {
    let store = server.store();
    match wanted {
        WantedVersion::Newest => Ok(store.cached(target.kind, usize::MAX)),
        WantedVersion::Any => Ok(store.cached(target.kind, caller.replica)),
        WantedVersion::NotOlder(version) => {
            let newest = store.version_of(caller.replica);
            if version > newest {
                return Err(Status::too_new(version, newest));
            }
            Ok(store.cached(target.kind, caller.replica))
        }
        WantedVersion::Exact(version) => {
            if version > store.version {
                return Err(Status::too_new(version, store.version));
            }
            let objects = store.at(target.kind, version).ok_or_else(|| {
                let why = format!("The provided continue parameter or resource version {version} is too old");
                Status::expired(why)
            })?;
            Ok((objects, version))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_can_be_parsed_back() {
        let last = json!({"metadata": {"namespace": "ns", "name": "a.b-c"}});
        assert_eq!(parse_token(&token(7, &last)), Some((7, ("ns".to_owned(), "a.b-c".to_owned()))));
        assert_eq!(parse_token("nonsense"), None);
    }
}
