//! The commands in the documents, as a reader types them. Those of some sections run on the real control plane; every
//! other one is listed here with the reason why it does not.

use super::root;

/// The sections whose commands run, in this order, as document and heading.
pub const INSTALL: (&str, &str) = ("README.md", "## Install it");
pub const FIRST_GANG: (&str, &str) = ("docs/quickstart.md", "## On the real control plane");
pub const SECTIONS: [(&str, &str); 7] = [
    ("docs/states.md", "## Read the state"),
    ("README.md", "## Why is my job waiting?"),
    ("docs/see.md", "## All gangs"),
    ("docs/see.md", "## As a kubectl plugin"),
    ("docs/operations.md", "# Operating Setu"),
    ("docs/troubleshooting.md", "# Troubleshooting"),
    ("docs/quickstart.md", "## What to try next"),
];

/// The prefixes of lines that do not run here, each with the reason.
pub const ELSEWHERE: [(&str, &str); 60] = [
    ("cargo run --release -- demo", "tests/project/docs.rs runs it, and with --serve tests/kubectl"),
    ("cargo test", "it is what runs the tests"),
    ("SETU_SLOW=3 cargo test", "just e2e runs it"),
    ("cargo install --locked --path .", "the build that every test makes, into somebody's home"),
    ("ln -sf setu", "the terminal has that link"),
    ("source <(setu completions", "the shell's own; tests/commands/cli.rs prints them"),
    ("aws ecr", "needs an account of AWS"),
    ("az a", "needs an account of Azure"),
    ("gcloud a", "needs an account of Google Cloud"),
    ("docker ", "needs a container engine; a workflow builds the image"),
    (
        "helm install setu charts/setu --namespace kueue-system --set image.repository=REGISTRY/setu --set",
        "the README's with more values",
    ),
    (
        "helm install setu charts/setu --namespace kueue-system --set image.repository=$REGISTRY/setu --set",
        "the README's with more values",
    ),
    ("export REGISTRY=", "the reader's own registry"),
    ("kubectl patch clusterqueue NAME", "scenarios hold a queue; the tests of the chart uninstall it"),
    ("kubectl edit clusterqueue NAME", "opens an editor"),
    (
        "helm install setu-b",
        "an installation beside the one that is typed here; tests/chart has the policies",
    ),
    ("helm install setu . ", "tests/chart renders it in the chart's folder"),
    ("helm upgrade", "tests/chart"),
    ("helm uninstall", "tests/chart"),
    ("kubectl kustomize manifests", "tests/cluster.rs"),
    ("cosign verify", "needs a release"),
    ("gh attestation verify", "needs a release"),
    ("gh release download", "needs a release"),
    ("helm install setu oci://", "needs a release"),
    ("sha256sum --check SHA256SUMS", "needs a release"),
    ("tar -xzf setu-linux-amd64.tar.gz", "needs a release; tests/project/release.rs unpacks such an archive"),
    ("install -D setu ", "needs a release"),
    ("kubectl krew install", "needs a release"),
    ("helm test", "tests/chart"),
    ("helm rollback", "tests/chart"),
    ("setu policy", "tests/project/docs.rs"),
    ("$ setu plan -f examples/packing", "tests/project/docs.rs"),
    ("$ setu plan -f examples/devices", "tests/project/docs.rs"),
    ("$ setu explain job/waiting", "tests/commands/views.rs"),
    ("$ setu trace job/waiting", "tests/commands/views.rs"),
    ("setu plan -f examples/gang-of-four.yaml -f", "tests/project/docs.rs"),
    ("setu plan -f examples/frameworks/", "tests/commands/plan.rs"),
    ("setu plan -f first.yaml", "tests/project/docs.rs"),
    ("kubectl apply -f first.yaml", "needs machines of AWS"),
    ("setu explain job/first", "needs machines of AWS"),
    ("setu run", "typed last, when the test's own Setu is gone"),
    ("just pictures", "it takes the pictures that the documents show"),
    ("just instructions", "CI runs the same script"),
    ("just image", "takes minutes; tests/project/image.rs looks into its archive"),
    ("skopeo copy", "needs a registry"),
    ("just catalogue", "it fetches packages; a test holds what it wrote against figures by hand"),
    ("just cluster", "tests/cluster.rs"),
    ("just check", "it is what runs the tests"),
    ("just ci", "it is what runs all of this"),
    ("just e2e", "it is what runs this test"),
    ("just generate", "the tests compare what it writes"),
    ("just model", "takes long"),
    ("just site", "CI builds the site"),
    ("just manifests", "CI runs the same script"),
    ("just soak", "takes long"),
    ("just nightly", "takes long"),
    ("export KUBECONFIG=…", "the terminal has it"),
    ("kubectl --server", "tests/kubectl types it"),
    ("holder=$(kubectl -n kueue-system get lease setu", "no pod leads; tests/leaders.rs has the Lease"),
    ("kubectl -n kueue-system port-forward", "no kubelet runs the pod"),
];

pub fn is_elsewhere(line: &str) -> bool {
    ELSEWHERE.iter().any(|(start, _)| begins(line, start))
}

/// Whether a command line begins like this, however its words are spaced.
pub fn begins(line: &str, start: &str) -> bool {
    line.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(start)
}

/// The command lines in the shell blocks of a text.
pub fn shown(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let of = |kind: &str, prompt: &'static str| -> Vec<String> {
        let fence = format!("```{kind}\n");
        let blocks = text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
        let lines = blocks.flat_map(str::lines).filter(|l| !l.is_empty() && l.starts_with(prompt));
        lines.map(str::to_owned).collect()
    };
    [of("sh", ""), of("console", "$ ")].concat()
}

/// The command lines of a section.
pub fn section((document, heading): (&str, &str)) -> Vec<String> {
    let text = format!("\n{}", std::fs::read_to_string(root().join(document)).unwrap());
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap();
    shown(rest.split("\n## ").next().unwrap())
}

/// The command lines of a section that run here.
pub fn lines(place: (&str, &str)) -> Vec<String> {
    let lines: Vec<String> = section(place).into_iter().filter(|line| !is_elsewhere(line)).collect();
    assert!(!lines.is_empty(), "{} shows no command under {}", place.0, place.1);
    lines
}
