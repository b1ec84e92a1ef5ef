//! Builds the programs of the control plane from their Go modules, and extracts the manifests in those
//! modules. A module is rebuilt only when its sources changed. A missing Go toolchain is an error,
//! never a skip.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::versions::StackVersions;
use crate::{HarnessLayout, StackProvider, StackScope, operators, spark, versions};

/// One Go module under `programs/` and its binaries.
struct Module {
    name: &'static str,
    /// Each binary and the package it is built from.
    binaries: &'static [(&'static str, &'static str)],
}

/// Renders charts.
const HELM: Module = Module { name: "helm", binaries: &[("helm", "helm.sh/helm/v4/cmd/helm")] };

/// Generates the chart's README.
const HELM_DOCS: Module =
    Module { name: "helm-docs", binaries: &[("helm-docs", "github.com/norwoodj/helm-docs/cmd/helm-docs")] };

/// The modules of every stack, in build order: the slowest first, and helm before Kueue, whose manifests it renders.
const MODULES: [Module; 5] = [
    Module {
        name: "k8s",
        binaries: &[
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ],
    },
    HELM,
    Module {
        name: "kueue",
        // In one module, so that JobSet and LWS have the versions that this Kueue requires, and most shared
        // packages are compiled once.
        binaries: &[
            ("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
            ("jobset", "sigs.k8s.io/jobset"),
            ("lws", "sigs.k8s.io/lws/cmd"),
        ],
    },
    Module { name: "kwok", binaries: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")] },
    Module { name: "jaeger", binaries: &[("jaeger", "github.com/jaegertracing/jaeger/cmd/all-in-one")] },
];

/// The operators of frameworks, each with the versions of libraries that it was released with.
const OPERATORS: [Module; 6] = [
    Module { name: "kuberay", binaries: &[("kuberay", "github.com/ray-project/kuberay/ray-operator")] },
    Module {
        name: "training-operator",
        binaries: &[("training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1")],
    },
    Module {
        name: "mpi-operator",
        binaries: &[("mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator")],
    },
    Module {
        name: "trainer",
        binaries: &[("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager")],
    },
    Module { name: "appwrapper", binaries: &[("appwrapper", "github.com/project-codeflare/appwrapper/cmd")] },
    Module {
        name: "spark-operator",
        binaries: &[("spark-operator", "github.com/kubeflow/spark-operator/v2/cmd/operator")],
    },
];

/// The programs of a real node.
const NODE: [Module; 2] = [
    Module {
        name: "kubelet",
        binaries: &[
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    },
    Module { name: "coredns", binaries: &[("coredns", ".")] },
];

/// Karpenter with this provider.
const fn karpenter(provider: StackProvider) -> Module {
    match provider {
        StackProvider::Kwok => Module { name: "karpenter", binaries: &[("karpenter", ".")] },
        StackProvider::Aws => Module {
            name: "aws",
            binaries: &[("karpenter-aws", "github.com/aws/karpenter-provider-aws/cmd/controller")],
        },
    }
}

/// Builds the programs that are missing or out of date. Blocks, and waits for other builds of the same
/// programs. Writes its progress to standard error.
pub fn build(layout: &HarnessLayout, provider: StackProvider, scope: StackScope) -> Result<()> {
    let node = NODE.iter().filter(|_| scope == StackScope::RealNode);
    build_all(layout, MODULES.iter().chain([&karpenter(provider)]).chain(node))
}

/// Builds the operators of frameworks that are missing or out of date, as [`build`] does.
pub fn build_operators(layout: &HarnessLayout) -> Result<()> {
    build_all(layout, &OPERATORS)
}

/// The path of helm, which is built if needed.
pub fn helm(layout: &HarnessLayout) -> Result<PathBuf> {
    build_all(layout, [&HELM])?;
    Ok(layout.bin().join("helm"))
}

/// The path of helm-docs, which is built if needed.
pub fn helm_docs(layout: &HarnessLayout) -> Result<PathBuf> {
    build_all(layout, [&HELM_DOCS])?;
    Ok(layout.bin().join("helm-docs"))
}

fn build_all<'m>(layout: &HarnessLayout, modules: impl IntoIterator<Item = &'m Module>) -> Result<()> {
    for folder in [layout.bin(), layout.upstream()] {
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    for module in modules {
        build_module(layout, module).with_context(|| format!("building programs/{}", module.name))?;
    }
    Ok(())
}

/// The path of kubectl: the one on the PATH, or one built from the Kubernetes module.
pub fn kubectl(layout: &HarnessLayout) -> Result<PathBuf> {
    if let Some(found) = on_path("kubectl") {
        return Ok(found);
    }
    let built = layout.bin().join("kubectl");
    if !built.exists() {
        require_go()?;
        fs::create_dir_all(layout.bin()).with_context(|| format!("creating {}", layout.bin().display()))?;
        let mut command = go(&layout.module("k8s"), versions::of(layout)?);
        command.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(&built);
        run(command.arg("k8s.io/kubernetes/cmd/kubectl"))?;
    }
    Ok(built)
}

/// The first file with this name on the PATH. An absolute path stays as it is.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn build_module(layout: &HarnessLayout, module: &Module) -> Result<()> {
    let versions = versions::of(layout)?;
    let lock = File::create(layout.bin().join(format!(".{}.lock", module.name)))
        .context("creating the build lock")?;
    lock.lock().context("waiting for another build")?;
    let folder = layout.module(module.name);
    let fingerprint = fingerprint(layout, module, versions)?;
    let stamp = layout.bin().join(format!("{}.sha256", module.name));
    let complete = module.binaries.iter().all(|(name, _)| layout.bin().join(name).exists());
    if complete && fs::read_to_string(&stamp).is_ok_and(|known| known == fingerprint) {
        return Ok(());
    }
    require_go()?;
    let start = Instant::now();
    eprintln!("building programs/{} (minutes when the Go build cache is cold)", module.name);
    for (name, package) in module.binaries {
        let mut command = go(&folder, versions);
        command.args(["build", "-trimpath", "-buildvcs=false"]);
        command.args([
            "-tags",
            versions.tags,
            "-ldflags",
            &linker_flags(layout, module.name, versions)?,
            "-o",
        ]);
        run(command.arg(layout.bin().join(name)).arg(package))
            .context("go, which takes modules that it has not from GOPROXY, says above what it lacks")?;
    }
    take_manifests(layout, module.name, versions)?;
    fs::write(&stamp, fingerprint).with_context(|| format!("writing {}", stamp.display()))?;
    eprintln!("built programs/{} in {} s", module.name, start.elapsed().as_secs());
    Ok(())
}

/// Kueue reads the server's version and refuses one that was not linked in.
fn linker_flags(layout: &HarnessLayout, module: &str, versions: &StackVersions) -> Result<String> {
    if !matches!(module, "k8s" | "kubelet") {
        return Ok(String::new());
    }
    let (package, version) = ("k8s.io/component-base/version", versions.version(layout, "kubernetes")?);
    let minor = version.split('.').nth(1).unwrap_or_default();
    Ok(format!("-X {package}.gitVersion=v{version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}"))
}

fn fingerprint(layout: &HarnessLayout, module: &Module, versions: &StackVersions) -> Result<String> {
    let folder = layout.module(module.name);
    let modules = versions.module_file(&folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| ["go", "txt"].iter().any(|known| end == *known)))
        .chain([modules.with_extension("sum"), modules])
        .collect();
    files.sort();
    let mut hash = Sha256::new();
    hash.update(versions.tags);
    hash.update(linker_flags(layout, module.name, versions)?);
    for file in files {
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Copies or renders the manifests of the stack from the module's folder.
fn take_manifests(layout: &HarnessLayout, module: &str, versions: &StackVersions) -> Result<()> {
    let source = layout.module(module);
    let module_folder = |name: &str| module_folder(&source, versions, name);
    if let Some((_, from, places)) =
        operators::OPERATORS.iter().find(|(program, _, _)| program.name() == module)
    {
        let folder = module_folder(from)?;
        let mut files = Vec::new();
        for place in places.iter().map(|place| folder.join(place)) {
            files.extend(if place.is_dir() { yaml_files(&place)? } else { vec![place] });
        }
        write(&layout.upstream().join(format!("{module}.yaml")), &concatenated(&files)?)?;
    }
    match module {
        "kueue" => {
            for chart in ["kueue", "jobset", "lws"] {
                let folder = module_folder(&format!("sigs.k8s.io/{chart}"))?;
                let mut helm = Command::new(layout.bin().join("helm"));
                helm.args(["template", chart, "--include-crds"]).arg(folder.join("charts").join(chart));
                helm.args([
                    "--namespace",
                    crate::KUEUE_NAMESPACE,
                    "--kube-version",
                    &versions.version(layout, "kubernetes")?,
                ]);
                write(&layout.upstream().join(format!("{chart}.yaml")), &output(&mut helm)?)?;
            }
            Ok(())
        }
        "karpenter" => {
            let karpenter = module_folder("sigs.k8s.io/karpenter")?;
            let mut files = yaml_files(&karpenter.join("kwok/charts/crds"))?;
            files.extend(yaml_files(&karpenter.join("kwok/apis/crds"))?);
            write(&layout.upstream().join("karpenter.yaml"), &concatenated(&files)?)
        }
        "aws" => {
            let provider = module_folder("github.com/aws/karpenter-provider-aws")?;
            let files = yaml_files(&provider.join("pkg/apis/crds"))?;
            write(&layout.upstream().join("karpenter-aws.yaml"), &concatenated(&files)?)?;
            install_moto(layout)
        }
        "spark-operator" => spark::install(layout),
        "kubelet" => {
            // The container that holds a pod's namespaces.
            let source = module_folder("k8s.io/kubernetes")?.join("build/pause/linux/pause.c");
            let version = format!("-DVERSION=v{}", versions.version(layout, "kubernetes")?);
            let mut compiler = Command::new("cc");
            compiler.args(["-Os", "-static", &version, "-o"]).arg(layout.bin().join("pause")).arg(source);
            run(&mut compiler)
                .context("compiling Kubernetes' pause needs a C compiler and a static C library")
        }
        "kwok" => {
            let stages = module_folder("sigs.k8s.io/kwok")?.join("kustomize/stage");
            let files = [
                "node/fast/node-initialize.yaml",
                "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
                "pod/fast/pod-ready.yaml",
                "pod/fast/pod-delete.yaml",
            ]
            .map(|file| stages.join(file));
            write(&layout.upstream().join("kwok.yaml"), &concatenated(&files)?)
        }
        _ => Ok(()),
    }
}

/// Creates a Python virtual environment with moto, with the versions and hashes in its list.
fn install_moto(layout: &HarnessLayout) -> Result<()> {
    let folder = layout.bin().join("moto");
    let mut python = Command::new("python3");
    python.args(["-m", "venv", "--clear"]).arg(&folder);
    run(&mut python).context(
        "making a virtual environment for moto: install Python 3.11 or later with its module venv",
    )?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "--requirement",
    ]);
    run(pip.arg(layout.module("aws").join("moto.txt")))
        .context("pip, which takes moto from PyPI or from PIP_INDEX_URL, says above what it lacks")
}

fn module_folder(source: &Path, versions: &StackVersions, module: &str) -> Result<PathBuf> {
    let folder = output(go(source, versions).args(["list", "-m", "-f", "{{.Dir}}", module]))?;
    Ok(PathBuf::from(folder.trim()))
}

/// The YAML files of a folder, sorted by name.
pub(crate) fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "yaml" || end == "yml"))
        .collect();
    files.sort();
    Ok(files)
}

fn concatenated(files: &[PathBuf]) -> Result<String> {
    let mut all = String::new();
    for file in files {
        all.push_str("---\n");
        all.push_str(&fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?);
        all.push('\n');
    }
    Ok(all)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn require_go() -> Result<()> {
    match Command::new("go").arg("version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        _ => bail!(
            "the Go toolchain is missing: the control plane of the end-to-end tests is built with `go`, \
             install Go 1.26 or later and put it on the PATH"
        ),
    }
}

fn go(folder: &Path, versions: &StackVersions) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder).env("GOWORK", "off");
    let modules = versions.module_file(folder);
    if !modules.ends_with("go.mod") {
        let flags = std::env::var("GOFLAGS").unwrap_or_default();
        command.env("GOFLAGS", format!("{flags} -modfile={}", modules.display()));
        command.envs(newer_toolchain(&modules).map(|name| ("GOTOOLCHAIN", name)));
    }
    command
}

/// The Go that a module file needs, if the installed one is older. Go itself looks only into `go.mod`.
fn newer_toolchain(modules: &Path) -> Option<String> {
    let text = fs::read_to_string(modules).ok()?;
    let needed = text.lines().find_map(|line| line.strip_prefix("go "))?;
    let installed = Command::new("go").args(["env", "GOVERSION"]).output().ok()?.stdout;
    let parts =
        |version: &str| -> Vec<u32> { version.split('.').filter_map(|part| part.parse().ok()).collect() };
    let installed = String::from_utf8(installed).ok()?;
    let is_older = parts(installed.trim().trim_start_matches("go")) < parts(needed);
    is_older.then(|| format!("go{needed}"))
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading what {command:?} printed"))
}
