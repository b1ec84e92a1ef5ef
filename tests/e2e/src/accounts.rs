//! Kubeconfigs for ServiceAccounts, so that a process under test has the same permissions as in a cluster.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::Stack;

/// Longer than any run.
const TOKEN_LIFE_SECONDS: i64 = 6 * 3600;

impl Stack {
    /// Writes a kubeconfig with a token for this ServiceAccount, which must exist.
    pub async fn kubeconfig_of(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let what = || format!("a token for ServiceAccount {namespace}/{account}");
        let api: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let spec = TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(TOKEN_LIFE_SECONDS),
            bound_object_ref: None,
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = api.create_token_request(account, &PostParams::default(), &request).await;
        let token = answer.with_context(what)?.status.with_context(what)?.token;
        let text = fs::read_to_string(self.kubeconfig()).context("reading the kubeconfig")?;
        let mut config: Value = serde_yaml::from_str(&text).context("reading the kubeconfig")?;
        let user = config.pointer_mut("/users/0/user").context("the kubeconfig names no user")?;
        *user = json!({"token": token});
        let path = self.folder().join(format!("kubeconfig-{namespace}-{account}"));
        fs::write(&path, config.to_string()).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// A client with the permissions of this ServiceAccount.
    pub async fn client_of(&self, namespace: &str, account: &str) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig_of(namespace, account).await?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}
