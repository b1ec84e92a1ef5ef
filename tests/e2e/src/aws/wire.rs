//! Parses calls to AWS, and formats EC2's answers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

/// The parameters of a call that uses the query protocol.
pub type Form = BTreeMap<String, String>;

/// The service in a call's signature.
pub(super) fn service(headers: &HeaderMap) -> String {
    let signed = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let scope = signed.split("Credential=").nth(1).unwrap_or_default();
    scope.split('/').nth(3).unwrap_or_default().to_owned()
}

pub(super) fn form(headers: &HeaderMap, body: &Bytes) -> Form {
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Form::new();
    }
    form_urlencoded::parse(body).into_owned().collect()
}

/// The action: from the form, from the header of JSON calls, or from the path for EKS.
pub(super) fn action(head: &http::request::Parts, form: &Form) -> String {
    let target = head.headers.get("x-amz-target").and_then(|value| value.to_str().ok());
    let target = target.and_then(|target| target.split('.').nth(1));
    let rest = || if head.uri.path().starts_with("/clusters/") { "DescribeCluster" } else { head.uri.path() };
    form.get("Action").map(String::as_str).or(target).unwrap_or_else(rest).to_owned()
}

pub(super) fn xml(status: StatusCode, text: String) -> Result<Response<Full<Bytes>>> {
    let answer = Response::builder().status(status).header("content-type", "text/xml;charset=UTF-8");
    answer.body(Full::from(text)).context("making an answer")
}

pub(super) fn list(action: &str, list: &str, members: &str) -> Result<Response<Full<Bytes>>> {
    let space = "http://ec2.amazonaws.com/doc/2016-11-15/";
    let text = format!(
        "<{action}Response xmlns=\"{space}\"><requestId>e2e</requestId><{list}>{members}</{list}></{action}Response>"
    );
    xml(StatusCode::OK, text)
}

pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Result<Response<Full<Bytes>>> {
    let text = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>\
         <RequestID>e2e</RequestID></Response>"
    );
    xml(status, text)
}

pub(super) fn is_dry_run(form: &Form) -> bool {
    form.get("DryRun").is_some_and(|dry| dry == "true")
}

/// The number of EFA interfaces of each instance, from the parameters of CreateLaunchTemplate.
pub(super) fn efas(form: &Form) -> u64 {
    let is_efa = |(key, value): (&String, &String)| {
        key.ends_with(".InterfaceType") && matches!(value.as_str(), "efa" | "efa-only")
    };
    form.iter().map(|parameter| u64::from(is_efa(parameter))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efa_interfaces_of_a_launch_template_are_counted() {
        let form = |types: &[&str]| -> Form {
            let key = |n| format!("LaunchTemplateData.NetworkInterface.{n}.InterfaceType");
            (1..).map(key).zip(types.iter().map(|kind| (*kind).to_owned())).collect()
        };
        let lists: [&[&str]; 4] = [&[], &["interface"], &["efa"], &["interface", "efa-only", "efa"]];
        assert_eq!(lists.map(|types| efas(&form(types))), [0, 0, 1, 2]);
    }
}
