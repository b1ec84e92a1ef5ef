# A static binary, certificate authorities and a user, and nothing else. For both architectures:
#   docker buildx build --platform linux/amd64,linux/arm64 -t setu .
# `just image` makes the same without docker: .ci/image reads flags, labels, user, ports and command here.
# Base images are named by digest, so that the same commit is built from the same parts; a digest is that of the list for
# all architectures, and the tag beside it is for readers.

# Dependencies are compiled before the sources are copied, so that they stay cached until they change.
FROM --platform=$BUILDPLATFORM rust:1.95-alpine@sha256:606fd313a0f49743ee2a7bd49a0914bab7deedb12791f3a846a34a4711db7ed2 AS build
# Alpine keeps no package once there is a newer one, so a pinned version would soon be gone. Python installs the C compiler and
# writes the image's files. cargo-auditable writes into the binary which crates it is made of, where scanners and the image's SBOM
# find them.
# hadolint ignore=DL3018
RUN apk add --no-cache musl-dev python3 py3-pip && \
    cargo install cargo-auditable --locked --version 0.7.7
ARG TARGETARCH
# Seconds since 1970 of the commit; with it two builds of one commit are alike.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    CARGO_INCREMENTAL=0 \
    RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=/build=. --remap-path-prefix=/usr/local/cargo=cargo"
WORKDIR /build
SHELL ["/bin/ash", "-eo", "pipefail", "-c"]
# The compiler's own linker knows every architecture, but links static binaries alone. So it is for the other one: where host and
# target are the same, build scripts and proc macros, which are dynamic here, are linked by what is named for the target.
RUN case "$TARGETARCH" in \
      amd64) echo x86_64-unknown-linux-musl ;; \
      arm64) echo aarch64-unknown-linux-musl ;; \
      *) echo "no image for $TARGETARCH" >&2; exit 1 ;; \
    esac > /target && \
    rustup target add "$(cat /target)" && \
    if ! rustc -vV | grep -qx "host: $(cat /target)"; then \
      printf '[target.%s]\nlinker = "rust-lld"\n' "$(cat /target)" > /usr/local/cargo/config.toml; \
    fi
# Alpine's C compilers have the headers of their own architecture alone.
COPY .ci/image .ci/shared.py .ci/certificates.txt .ci/zig.txt .ci/
RUN python3 .ci/image --compiler "$TARGETARCH"
ENV CC=/build/target/image/cc-${TARGETARCH} \
    AR=/build/target/image/ar-${TARGETARCH}
COPY Cargo.toml Cargo.lock ./
COPY crates/setu-clock/Cargo.toml crates/setu-clock/
COPY crates/setu-core/Cargo.toml crates/setu-core/
COPY crates/setu-sim/Cargo.toml crates/setu-sim/
COPY tests/e2e/Cargo.toml tests/e2e/
COPY tests/model/Cargo.toml tests/model/
# Stand-ins for every target that a Cargo.toml names.
RUN mkdir -p src crates/setu-clock/src crates/setu-core/src crates/setu-sim/src benches/big benches/compare tests/e2e/src tests/e2e/tests/scenarios tests/e2e/tests/conformance && \
    touch src/lib.rs crates/setu-clock/src/lib.rs crates/setu-core/src/lib.rs crates/setu-sim/src/lib.rs benches/big/main.rs benches/compare/main.rs tests/e2e/src/lib.rs tests/e2e/tests/scenarios/main.rs \
      tests/e2e/tests/conformance/main.rs tests/model/lib.rs && \
    sed -n '/^\[\[bench\]\]/,/^$/s/^name = "\(.*\)"/benches\/\1.rs/p' Cargo.toml | xargs -r touch && \
    echo 'fn main() {}' > src/main.rs && \
    cargo auditable build --release --locked --no-default-features -p setu --bin setu --target "$(cat /target)" && \
    rm -r src crates/*/src
COPY crates crates
COPY src src
# Newer than what the stand-in left behind.
RUN find crates src -name '*.rs' -exec touch {} + && \
    cargo auditable build --release --locked --no-default-features -p setu --bin setu --target "$(cat /target)" && \
    ls -l "target/$(cat /target)/release/setu"
RUN python3 .ci/image --binary "$TARGETARCH=target/$(cat /target)/release/setu" --tree /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
# The address of the repository; registries link the image to it.
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="setu" \
      org.opencontainers.image.description="All the nodes of a gang or none, for Kueue and Karpenter" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/usr/local/bin/setu"]
CMD ["run"]
