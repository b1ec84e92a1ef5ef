//! The paths of the harness: sources are in this crate, outputs in the workspace's `target/e2e`, or in a folder of it for a
//! set of versions that is not the usual one.
//! The one rule: nothing is ever written to the source tree.

use std::path::{Path, PathBuf};

use crate::versions;

/// The folders of the harness.
#[derive(Clone, Debug)]
pub struct HarnessLayout {
    /// The folder of this crate.
    source: PathBuf,
    /// `target/e2e` of the workspace, or a folder in it.
    output: PathBuf,
    versions: Option<String>,
}

impl Default for HarnessLayout {
    fn default() -> Self {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let workspace = source.ancestors().nth(2).unwrap_or(&source);
        Self::of_workspace(workspace)
    }
}

impl HarnessLayout {
    /// The layout of the workspace at `root`, for a binary that was moved after the build.
    pub fn of_workspace(root: &Path) -> Self {
        let versions = std::env::var(versions::VARIABLE).ok().filter(|name| !name.is_empty());
        let (source, output) = (root.join("tests/e2e"), root.join("target/e2e"));
        Self { source, output, versions: None }.with(versions)
    }

    /// The layout of a set of versions in the same workspace, of a layout of the usual one.
    #[must_use]
    pub fn with(self, versions: Option<String>) -> Self {
        let output = self.output.join(versions.as_deref().unwrap_or_default());
        Self { output, versions, ..self }
    }

    /// The name of the set of versions, as [`versions::of`] checks it; `None` for the usual one.
    pub fn versions(&self) -> Option<&str> {
        self.versions.as_deref()
    }

    /// The Go module of one group of programs.
    pub fn module(&self, name: &str) -> PathBuf {
        self.source.join("programs").join(name)
    }

    /// The scripts of a node with a real kubelet.
    pub fn node(&self) -> PathBuf {
        self.source.join("node")
    }

    /// One of our manifests.
    pub fn manifest(&self, name: &str) -> PathBuf {
        self.source.join("manifests").join(name)
    }

    /// The files that `cluster --provider aws` applies: a NodeClass, NodePools, and the queues of the examples.
    pub fn aws_setup(&self) -> Vec<PathBuf> {
        let examples = self.source.join("../../examples/setup");
        vec![self.manifest("aws"), examples.join("crds.yaml"), examples.join("queues.yaml")]
    }

    /// The instance types of the cloud, in the format of Karpenter's kwok provider.
    pub fn instance_types(&self) -> PathBuf {
        self.source.join("instance-types.json")
    }

    /// The folder of the built programs.
    pub fn bin(&self) -> PathBuf {
        self.output.join("bin")
    }

    /// The folder for the manifests taken from the programs' modules.
    pub fn upstream(&self) -> PathBuf {
        self.output.join("manifests")
    }

    /// The folder of running stacks, one folder each.
    pub fn runs(&self) -> PathBuf {
        self.output.join("run")
    }

    /// Where the logs of failed runs are kept.
    pub fn kept_logs(&self) -> PathBuf {
        self.output.join("logs")
    }
}
