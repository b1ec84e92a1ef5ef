//! Who may talk to the API server: one administrator with a random token, programs that go by the names of their
//! ServiceAccounts, and the key that signs service account tokens. Made anew for every stack, nothing secret is ever stored.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair};
use serde_json::{Value, json};

static ALGORITHM: &EcdsaSigningAlgorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;

/// The DER of a SubjectPublicKeyInfo for P-256 up to the point itself (RFC 5480, section 2).
const P256_PUBLIC_KEY_INFO: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Who Karpenter is to the API server, as in a real cluster: admission policies judge it by that name.
const KARPENTER: &str = "system:serviceaccount:kube-system:karpenter";
/// Who Kueue is.
const KUEUE: &str = "system:serviceaccount:kueue-system:kueue-controller-manager";

/// The files that prove who is who.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The administrator's.
    pub kubeconfig: PathBuf,
    pub karpenter: PathBuf,
    pub kueue: PathBuf,
    /// The API server's token file.
    pub tokens: PathBuf,
    /// Private key of the service accounts' issuer.
    pub issuer_key: PathBuf,
    /// The same issuer's public key.
    pub issuer_public_key: PathBuf,
    /// Where the API server puts its self-signed certificate.
    pub certificates: PathBuf,
    /// Where that certificate has the names that webhook servers look for.
    pub serving: PathBuf,
}

impl Identity {
    /// Writes the files into `folder`. The certificate is there once the API server has started.
    pub(crate) fn create(folder: &Path, api_server: u16) -> Result<Self> {
        let random = SystemRandom::new();
        let identity = Self {
            kubeconfig: folder.join("kubeconfig"),
            karpenter: folder.join("kubeconfig-karpenter"),
            kueue: folder.join("kubeconfig-kueue"),
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

    /// The API server's certificate with the authority that signed it.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.certificates.join("apiserver.crt")
    }

    /// The API server makes the files when it starts; the links may be there before.
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

/// What lets the programs do everything but what admission policies refuse.
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
