//! Applies objects with server-side apply, CRDs and namespaces first. Retries until a deadline when
//! a kind is not served yet or a webhook does not answer yet.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope, oneshot};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::programs::yaml_files;

const FIELD_MANAGER: &str = "setu-e2e";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Applies every YAML file of a folder, or one file.
pub async fn path(client: &Client, path: &Path) -> Result<()> {
    let files = if path.is_dir() { yaml_files(path)? } else { vec![path.to_owned()] };
    let mut objects = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        objects.extend(documents(&text).with_context(|| format!("reading {}", file.display()))?);
    }
    all(client, objects).await
}

/// Applies every document of a YAML text.
pub async fn yaml(client: &Client, text: &str) -> Result<()> {
    all(client, documents(text)?).await
}

/// Applies the objects. Returns when all are stored and all CRDs among them are served.
pub async fn all(client: &Client, mut objects: Vec<Value>) -> Result<()> {
    objects.sort_by_key(|object| match object.get("kind").and_then(Value::as_str) {
        Some("CustomResourceDefinition") => 0,
        Some("Namespace") => 1,
        _ => 2,
    });
    for object in objects {
        one(client, object).await?;
    }
    Ok(())
}

/// All served kinds. The API server lists a group slightly before its kinds, so discovery is retried until both
/// are there.
pub async fn kinds(client: &Client) -> Result<Discovery> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Discovery::new(client.clone()).run().await {
            Ok(kinds) => return Ok(kinds),
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(200)).await,
            Err(error) => return Err(error).context("listing the kinds that are served"),
        }
    }
}

/// Applies one object and returns the stored one. An object without a namespace is applied to `default`.
pub async fn one(client: &Client, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object).context("reading an object to apply")?;
    let name = object.metadata.name.clone().context("an object to apply has no metadata.name")?;
    let kind = object.types.as_ref().map(|types| types.kind.clone()).unwrap_or_default();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt(client, &object, &name).await {
            Ok(stored) => return Ok(stored),
            Err(error) if Instant::now() < deadline && passes(&error) => {
                sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error).with_context(|| format!("applying {kind} {name}")),
        }
    }
}

async fn attempt(client: &Client, object: &DynamicObject, name: &str) -> Result<DynamicObject> {
    let api = api_for(client, object).await?;
    let params = PatchParams::apply(FIELD_MANAGER).force();
    Ok(api.patch(name, &params, &Patch::Apply(object)).await?)
}

/// Fails unless the API server and its webhooks accept the creation of this object. Nothing is stored.
pub(crate) async fn would_create(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object).context("reading an object to try")?;
    let dry_run = PostParams { dry_run: true, field_manager: None };
    let tried = api_for(client, &object).await?.create(&dry_run, &object).await;
    tried.map(drop).context("creating an object without storing it")
}

/// Whether an error is transient, because the control plane has not caught up yet.
fn passes(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => {
            status.is_conflict() || matches!(status.code, 404 | 429 | 500 | 503)
        }
        Some(_) => true,
        None => false,
    }
}

/// The API of the object's kind, in its namespace or in `default`.
pub async fn api_for(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object has no apiVersion and kind")?;
    let kind = GroupVersionKind::try_from(types).context("reading an object's apiVersion")?;
    let (resource, capabilities) = oneshot::pinned_kind(client, &kind).await?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    })
}

/// The documents of a YAML text as JSON, without empty ones.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| anyhow!("not valid YAML: {error}"))?;
        if !value.is_null() {
            out.push(value);
        }
    }
    Ok(out)
}
