//! The clients of the API server: one administrator with a random token, programs with the user names of their
//! ServiceAccounts, and the key that signs service account tokens. Every stack gets new ones; no secret is kept.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair};
use serde_json::{Value, json};

static ALGORITHM: &EcdsaSigningAlgorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;

/// The DER of a SubjectPublicKeyInfo for P-256, up to the point (RFC 5480, section 2).
const P256_PUBLIC_KEY_INFO: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Karpenter's user name, as in a real cluster: admission policies match on it.
const KARPENTER: &str = "system:serviceaccount:kube-system:karpenter";
/// Kueue's user name.
const KUEUE: &str = "system:serviceaccount:kueue-system:kueue-controller-manager";

/// The kubelet's user name, which the node's name is part of.
const KUBELET: &str = "system:node:real";

/// The credential files.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    pub karpenter: PathBuf,
    pub kueue: PathBuf,
    pub kubelet: PathBuf,
    pub proxy: PathBuf,
    /// The API server's token file.
    pub tokens: PathBuf,
    /// The private key of the service account issuer.
    pub issuer_key: PathBuf,
    /// The public key of the same issuer.
    pub issuer_public_key: PathBuf,
    /// The folder where the API server writes its self-signed certificate.
    pub certificates: PathBuf,
    /// The folder with the same certificate under the file names that webhook servers read.
    pub serving: PathBuf,
}

impl Identity {
    /// Writes the files into `folder`. The API server creates the certificate when it starts.
    pub(crate) fn create(folder: &Path, api_server: u16) -> Result<Self> {
        let random = SystemRandom::new();
        let identity = Self {
            kubeconfig: folder.join("kubeconfig"),
            karpenter: folder.join("kubeconfig-karpenter"),
            kueue: folder.join("kubeconfig-kueue"),
            kubelet: folder.join("kubeconfig-kubelet"),
            proxy: folder.join("kubeconfig-proxy"),
            tokens: folder.join("tokens.csv"),
            issuer_key: folder.join("issuer.pem"),
            issuer_public_key: folder.join("issuer-public.pem"),
            certificates: folder.join("certificates"),
            serving: folder.join("serving"),
        };
        identity.link_certificate()?;
        let mut tokens = String::new();
        for (file, user, groups) in [
            (&identity.kubeconfig, "admin", ",\"system:masters\""),
            (&identity.karpenter, KARPENTER, ""),
            (&identity.kueue, KUEUE, ""),
            (&identity.kubelet, KUBELET, ",\"system:nodes\""),
            (&identity.proxy, "system:kube-proxy", ""),
        ] {
            let token = token(&random)?;
            tokens.extend([&token, ",", user, ",", user, groups, "\n"]);
            identity.write_kubeconfig(file, &token, api_server)?;
        }
        write(&identity.tokens, &tokens)?;
        identity.write_issuer(&random)?;
        Ok(identity)
    }

    fn write_kubeconfig(&self, file: &Path, token: &str, api_server: u16) -> Result<()> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "user"}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "clusters": [{"name": "e2e", "cluster": {
                "server": format!("https://127.0.0.1:{api_server}"),
                "certificate-authority": self.certificate(),
            }}],
        });
        write(file, &serde_yaml::to_string(&kubeconfig).context("writing the kubeconfig as YAML")?)
    }

    /// The API server's certificate, with the CA that signed it.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.certificates.join("apiserver.crt")
    }

    /// Links to the certificate files, which the API server creates later.
    fn link_certificate(&self) -> Result<()> {
        fs::create_dir_all(&self.serving).with_context(|| format!("creating {}", self.serving.display()))?;
        for (name, file) in [("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")] {
            let link = self.serving.join(name);
            symlink(self.certificates.join(file), &link)
                .with_context(|| format!("making the link {}", link.display()))?;
        }
        Ok(())
    }

    fn write_issuer(&self, random: &SystemRandom) -> Result<()> {
        let failed = || anyhow!("generating the service accounts' key failed");
        let private = EcdsaKeyPair::generate_pkcs8(ALGORITHM, random).map_err(|_| failed())?;
        let pair = EcdsaKeyPair::from_pkcs8(ALGORITHM, private.as_ref(), random).map_err(|_| failed())?;
        write(&self.issuer_key, &pem::encode(&pem::Pem::new("PRIVATE KEY", private.as_ref())))?;
        let public = [P256_PUBLIC_KEY_INFO, pair.public_key().as_ref()].concat();
        write(&self.issuer_public_key, &pem::encode(&pem::Pem::new("PUBLIC KEY", public)))
    }
}

/// Lets the programs do everything that admission policies do not deny.
pub(crate) fn rights() -> Value {
    let users = [KARPENTER, KUEUE];
    let subject = |user| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "e2e-programs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": users.map(subject),
    })
}

fn token(random: &SystemRandom) -> Result<String> {
    let mut bytes = [0; 16];
    random.fill(&mut bytes).map_err(|_| anyhow!("the system gave no randomness"))?;
    Ok(bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
