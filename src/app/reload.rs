//! Takes over a policy file when it changes.
//!
//! A mounted ConfigMap changes by a swap of symbolic links in the file's directory, so the directory is watched, not the
//! file. Rule: a file that cannot be used changes nothing except the reports about it.

use super::AppError;
use crate::controllers::Context;
use crate::effects::events::Moment;
use crate::gang::report::notice::Notice;
use crate::policy::read::FileError;
use crate::policy::{PolicyFile, Settings};
use crate::telemetry::metrics::{self, Reload};
use kube::{Client, Resource as _, ResourceExt as _};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;

/// Changes closer together than this count as one: editors write in pieces.
const SETTLE: Duration = Duration::from_millis(150);
/// How often the file is read without a change, as some file systems report none.
const SAFETY_NET: Duration = Duration::from_mins(1);

/// How often it is asked whether all checks are known.
const CATCH_UP: Duration = Duration::from_secs(1);

/// A policy file that is watched.
pub struct WatchedFile {
    path: PathBuf,
    /// The text as last read, or why it could not be read.
    last: Result<String, String>,
    changes: UnboundedReceiver<()>,
    /// Ends the watch when it is dropped.
    _watcher: RecommendedWatcher,
}

impl WatchedFile {
    /// Starts watching. A change made after this is seen.
    pub fn start(path: &Path) -> Result<Self, AppError> {
        let failed = |e: notify::Error| {
            AppError::Failed(format!("watching the directory of the policy file {}: {e}", path.display()))
        };
        let (reported, changes) = unbounded_channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // On some systems a read of the file counts as a change, and this would never end.
            if event.is_ok_and(|e| !e.kind.is_access()) {
                // Fails only while the process ends.
                let _ = reported.send(());
            }
        })
        .map_err(failed)?;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        watcher.watch(folder, RecursiveMode::NonRecursive).map_err(failed)?;
        Ok(Self { path: path.to_owned(), last: text(path), changes, _watcher: watcher })
    }

    /// The next file that differs from the last, usable or not.
    pub async fn next(&mut self) -> Result<PolicyFile, FileError> {
        loop {
            // Either a change, or the time for a read without one.
            let _ = tokio::time::timeout(SAFETY_NET, self.changes.recv()).await;
            while tokio::time::timeout(SETTLE, self.changes.recv()).await.is_ok_and(|c| c.is_some()) {}
            let now = text(&self.path);
            if now != self.last {
                self.last = now;
                return PolicyFile::read(&self.path);
            }
        }
    }
}

fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| e.to_string())
}

/// Takes over every new version until `stop`.
pub async fn follow(mut watched: WatchedFile, context: Arc<Context>, stop: CancellationToken) {
    // It may have changed between the first read and the start of the watch.
    let now = PolicyFile::read(&watched.path);
    if now.as_ref().map_or(true, |file| *file != context.policies.settings().file) {
        take_over(&context, now).await;
    }
    let first_warning = async {
        if stop.run_until_cancelled(known_checks(&context)).await.is_some() {
            warn_of_unknown_checks(&context);
        }
    };
    let changes = async {
        while let Some(read) = stop.run_until_cancelled(watched.next()).await {
            take_over(&context, read).await;
        }
    };
    tokio::join!(first_warning, changes);
}

/// Puts a new version in force, or reports why it is not.
pub async fn take_over(context: &Context, read: Result<PolicyFile, FileError>) {
    let (reason, warning, text) = match read {
        Ok(file) => {
            metrics::policy_reload(Reload::Applied);
            let settings = Settings { file, ..(*context.policies.settings()).clone() };
            let served = groups_that_matter(&context.client, &settings).await;
            context.policies.replace(settings.file, served);
            context.policy_changed();
            tracing::info!("took over a new policy file");
            warn_of_unknown_checks(context);
            ("PolicyReloaded", false, "a new policy file holds for new attempts".to_owned())
        }
        Err(error) => {
            metrics::policy_reload(Reload::Refused);
            tracing::warn!(error = %error, "kept the last good policy: the file cannot be used");
            let note = format!("the policy file cannot be used, and the last good one still holds: {error}");
            ("PolicyInvalid", true, note)
        }
    };
    // One replica reports it.
    if !context.shards.first().leads() {
        return;
    }
    let now = context.now();
    let notice = Notice { reason, topic: now.to_string(), warning, text };
    for check in context.stores.checks.state() {
        if context.answers(&check) {
            let moment = Moment { check: &check.name_any(), seq: 0, at: now };
            context.events.publish_on(check.object_ref(&()), moment, &notice);
        }
    }
}

/// Ends once all checks are known.
async fn known_checks(context: &Context) {
    while !context.first_lists.missing().is_empty() {
        tokio::time::sleep(CATCH_UP).await;
    }
}

/// Warns of entries of the policy file that are for no check of this installation. They have no effect.
fn warn_of_unknown_checks(context: &Context) {
    if !context.first_lists.missing().is_empty() {
        return;
    }
    let checks = context.stores.checks.state();
    let is_known = |name: &str| checks.iter().any(|check| check.name_any() == name && context.answers(check));
    for name in context.policies.settings().file.checks.keys().filter(|name| !is_known(name)) {
        tracing::warn!(
            "the policy file has an entry for check {name}, which has no effect: no AdmissionCheck of that name is this Setu's"
        );
    }
}

/// API groups that the cluster serves, if the preset of the cloud provider depends on them. If the cluster cannot be
/// asked, the last known ones; without any, the likeliest preset applies.
pub async fn groups_that_matter(client: &Client, settings: &Settings) -> Vec<String> {
    if settings.cloud_provider().1.node_classes().len() < 2 {
        return Vec::new();
    }
    match crate::effects::call("listing API groups of", "the cluster", client.list_api_groups()).await {
        Ok(list) => list.groups.into_iter().map(|g| g.name).collect(),
        Err(error) => {
            tracing::warn!(error = %error.in_full(), "cannot tell which NodeClass the cluster serves");
            settings.served_groups.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory as the kubelet lays it out: `policy.yaml` → `..data/policy.yaml`, `..data` → a version.
    struct Mount(PathBuf);

    impl Mount {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("setu-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("policy.yaml")
        }

        /// Swaps in a new version, as the kubelet does.
        fn swap(&self, version: &str, body: &str) {
            let data = self.0.join(version);
            std::fs::create_dir(&data).unwrap();
            let head = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
            std::fs::write(data.join("policy.yaml"), format!("{head}{body}")).unwrap();
            symlink(version, self.0.join("..data_tmp")).unwrap();
            std::fs::rename(self.0.join("..data_tmp"), self.0.join("..data")).unwrap();
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    async fn next(watched: &mut WatchedFile) -> Result<PolicyFile, FileError> {
        // Well under the safety net, so that only the watch can have reported it.
        tokio::time::timeout(Duration::from_secs(20), watched.next()).await.expect("the change was not seen")
    }

    #[tokio::test]
    async fn a_swap_of_links_is_seen_and_a_broken_file_is_reported_before_the_next_good_one() {
        let mount = Mount::new("reload");
        mount.swap("..1", "guards: {gangNodes: 1}");
        let mut watched = WatchedFile::start(&mount.file()).unwrap();
        mount.swap("..2", "guards: {gangNodes: 2}");
        assert_eq!(next(&mut watched).await.unwrap().guards.gang_nodes, Some(2));
        mount.swap("..3", "gaurds: {}");
        assert!(next(&mut watched).await.unwrap_err().to_string().contains("did you mean guards?"));
        mount.swap("..4", "guards: {gangNodes: 4}");
        assert_eq!(next(&mut watched).await.unwrap().guards.gang_nodes, Some(4));
        std::fs::remove_file(mount.0.join("..data")).unwrap();
        assert!(matches!(next(&mut watched).await, Err(FileError::Read { .. })));
    }
}
