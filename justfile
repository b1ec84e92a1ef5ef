# Everything CI runs, as people run it. `just` alone lists the recipes.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes
default:
    @just --list

# Format, lints and tests that need nothing but cargo
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test

# The scenarios on the real control plane; needs Go. A part of a title selects
e2e title='':
    bash tests/e2e/run.sh {{ quote(title) }}

# The real control plane to play with, until Ctrl-C; needs Go
cluster:
    cargo run -p setu-e2e -- cluster --apply examples/setup

# Random dramas in the embedded cluster, on all cores; prints gangs/s and what met what
soak count='1000' from='1000000':
    cargo bench --bench soak -- {{ count }} {{ from }}

# Write the generated files anew
generate:
    SETU_REGENERATE=1 cargo test --test charts --test generated --test views
