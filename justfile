# What is run by hand, and as `just ci` all that CI runs. `just` alone lists the recipes.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes
default:
    @just --list

# Format, lints and tests that need nothing but cargo
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
    cargo test --workspace --exclude setu-e2e

# All that CI runs before a change lands; needs Go, a C compiler, Python and npm, and installs promtool and chromium
ci:
    bash .ci/run

# The scenarios on the real control plane; needs Go. A part of a title selects
e2e title='':
    bash tests/e2e/run.sh {{ quote(title) }}

# The scenarios on Karpenter's own AWS provider before a mock of EC2; needs Go and Python. A part of a title selects
e2e-aws title='':
    bash tests/e2e/setu.sh
    SETU_SLOW="${SETU_SLOW:-3}" cargo test -p setu-e2e --test aws -- --include-ignored {{ quote(title) }}

# The examples of frameworks with their own operators on the real control plane; needs Go, Python and Java
e2e-frameworks:
    bash tests/e2e/setu.sh
    SETU_SLOW="${SETU_SLOW:-3}" cargo test -p setu-e2e --test examples -- --ignored

# Kueue's own integration specs with ProvisioningRequests, unmodified beside Setu, and with Setu as their autoscaler; needs Go and Python
peer-suites *flags:
    bash tests/e2e/peers.sh {{ flags }}

# The scenarios on other versions of Kubernetes, Karpenter and Kueue, and upgrades between them; needs Go, and builds for an hour at first
e2e-versions *sets='oldest between newest':
    bash tests/e2e/versions.sh {{ sets }}

# The image and the chart on a node with a real kubelet; needs root, Go and Python on Linux for amd64, and installs containerd
e2e-node:
    bash tests/e2e/node/run.sh

# The real control plane to play with, until Ctrl-C; needs Go. `just cluster --provider aws` has the AWS provider, and needs Python too
cluster *flags='--apply examples/setup':
    cargo run -p setu-e2e -- cluster {{ flags }}

# Random dramas in the embedded cluster, on all cores; prints gangs/s and what met what
soak count='1000' from='1000000':
    cargo bench --locked --bench soak -- {{ count }} {{ from }}

# The same with more dramas, in which every fault must meet a gang in every state; and every fault at every write
nightly count='100000' from='1000000':
    cargo test --locked --profile bench --test dramas -- --ignored every_fault --nocapture
    cargo bench --locked --bench soak -- {{ count }} {{ from }} every-pair

# The model to the end of what each mix of faults leads to; takes a while. `just model large` takes larger mixes
model how='whole':
    SETU_MODEL={{ quote(how) }} cargo test --locked --profile bench -p setu-model -- --nocapture --test-threads 1

# Fuzz one target (journal, quantity, policy, names); needs nightly and cargo-fuzz
fuzz target:
    cargo +nightly fuzz run {{ quote(target) }}

# The image for both architectures as target/setu-image.tar, without docker; needs Python on Linux for amd64, and takes minutes. Flags are those of
# `python3 .ci/image --help`
image *flags:
    python3 .ci/image {{ flags }}

# Every object of the chart, the manifests, the examples and the documents against its schema, with kubeconform; needs Go and PyYAML
manifests:
    python3 .ci/manifests

# The docs site as target/site/book, with every link checked; needs mdBook (`cargo install mdbook --locked --version 0.5.4`) and npm
site *flags:
    python3 .ci/site {{ flags }}

# The pictures of the documents anew: the demo as docs/images/demo.{cast,svg}, and the board; needs chromium, Python and npm
pictures:
    python3 -m venv target/picture
    target/picture/bin/pip install --quiet --no-deps --require-hashes --requirement .ci/picture.txt
    cargo build --release --locked
    target/picture/bin/python .ci/picture target/release/setu demo
    SETU_SCREENSHOTS="$PWD/target/board" cargo test --locked --test board -- --ignored a_browser_shows_a_gangs_progress
    cp target/board/board-{light,dark}.png docs/images/

# The image's binary, for any Linux of this architecture; needs Python
static:
    python3 .ci/image --only host --no-archive

# The same, and the checks that it is static, runs, and names no folder of this machine; needs Python and cargo-auditable
static-check:
    bash .ci/static

# Write the generated files anew; those of the chart need Go, once
generate:
    SETU_REGENERATE=1 cargo test --test project -- charts:: generated::
    SETU_REGENERATE=1 cargo test --test metrics --test commands
    SETU_REGENERATE=1 cargo test --test project what_is_copied
    SETU_REGENERATE=1 cargo test -p setu-e2e --test chart -- render readme
    SETU_REGENERATE=1 cargo test -p setu-e2e --lib versions::

# The embedded catalogue of instance types anew, from published packages and catalogue/*.csv; needs Go and Python
catalogue:
    mkdir -p target/catalogue
    pip download --quiet --no-deps --require-hashes --dest target/catalogue --requirement catalogue/requirements.txt
    cd catalogue/regions && go mod download github.com/cristim/ec2-instances-info
    cd catalogue && go run . ../target/catalogue/moto-*.whl "$(go list -m -f '{{{{.Dir}}' github.com/aws/karpenter-provider-aws)" "$(cd regions && go list -m -f '{{{{.Dir}}' github.com/cristim/ec2-instances-info)" ../crates/setu-core/src/plan/catalogue/types.json.gz
    cd catalogue/azure && go mod download github.com/Azure/karpenter-provider-azure
    cd catalogue && go run ./others azure.csv "$(cd azure && go list -m -f '{{{{.Dir}}' github.com/Azure/karpenter-provider-azure)" ../crates/setu-core/src/plan/catalogue/azure.json.gz google.csv ../crates/setu-core/src/plan/catalogue/gcp.json.gz

# What Karpenter's own scheduler chooses for 500 random gangs, anew, for tests/core/karpenter.rs; needs Go
choices:
    cd tests/e2e/programs/karpenter && go run ./choices ../../../../crates/setu-core/src/plan/catalogue/types.json.gz 500 | gzip -9n > ../../../karpenter/choices.jsonl.gz

# What only Prometheus' own tool can check: metrics, alert rules and their tests; needs promtool
metrics:
    bash tests/promtool.sh

# The instructions of a plan, a step and an event, compared with tests/instructions.json; needs valgrind. `--record` writes that file
instructions *flags:
    .ci/instructions {{ flags }}

# What the pure parts cost (criterion), and how many gangs a second go through the embedded cluster
bench:
    cargo bench --bench pure
    cargo bench --bench reconcile

# A large cluster in the embedded API server: start, memory, idle CPU of `setu run`; with `--real`, which needs Go, in a real one
bench-big *flags:
    SETU_BIN="$(python3 .ci/image --only host --no-archive | tail -n 1)" cargo bench -p setu-e2e --bench big -- {{ flags }}

# Setu beside Kueue's own check, a poller and plain Karpenter on the real control plane; needs Go. `--full` takes longer, `--shortage` is that part alone
bench-compare *flags:
    SETU_BIN="$(python3 .ci/image --only host --no-archive | tail -n 1)" cargo bench -p setu-e2e --profile dev --bench compare -- {{ flags }}
