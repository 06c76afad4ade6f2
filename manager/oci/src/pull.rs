//! One pull: from a reference to a checked and packed component. Cheap checks come first, and a failed check ends the pull before
//! more is fetched. Order: manifest, configuration, signature, size, bytes, world.

use std::sync::Arc;

use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_manager_api::VerificationKey;
use kube::Client;
use oci_client::manifest::OciImageManifest;
use reqwest::Method;
use tokio::sync::Mutex;

use super::artifact::{Artifact, pack};
use super::cache::{Job, Key};
use super::clients::Clients;
use super::component;
use super::failure::{Failure, FailureReason};
use super::http::{RegistryRequest, RegistryResponse, Repository};
use super::layout::{self, Blob, Layout};
use super::pull_secret;
use super::settings::Settings;
use super::signature;

/// Header with the digest of a manifest (distribution specification, "Legacy Docker support HTTP headers").
const DIGEST_HEADER: &str = "docker-content-digest";

/// Shared by all pulls.
pub(super) struct Puller {
    client: Client,
    settings: Settings,
    /// The clients, and the certificate authorities that they trust.
    clients: Mutex<Option<(Vec<u8>, Clients)>>,
}

/// A manifest whose digest was checked.
struct Manifest {
    digest: String,
    content: OciImageManifest,
}

impl Puller {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        Self {
            client,
            settings,
            clients: Mutex::default(),
        }
    }

    /// Pulls a reference. Fails after `settings.times.pull`.
    pub(super) async fn pull(&self, job: &Job) -> Result<Arc<Artifact>, Failure> {
        let deadline = self.settings.times.pull;
        let pulled = tokio::time::timeout(deadline, Box::pin(self.try_pull(job))).await;
        pulled.unwrap_or_else(|_| {
            let message = format!("{} did not send all within {deadline:?}", job.key.image.host);
            Err(Failure::temporary(FailureReason::RegistryUnavailable, message))
        })
    }

    async fn try_pull(&self, job: &Job) -> Result<Arc<Artifact>, Failure> {
        let Key {
            image,
            secret,
            verification_key,
            ..
        } = &job.key;
        let credentials = match secret {
            Some((namespace, name)) => Some(pull_secret::read_credentials(&self.client, namespace, name, image).await?),
            None => None,
        };
        let clients = self.http_clients().await?;
        let mut repository = Repository::new(&clients, &self.settings, image, credentials)?;
        let target = match Self::resolve_tag(&mut repository, job).await? {
            TagTarget::Known(artifact) => return Ok(artifact),
            TagTarget::To(target) => target,
        };
        let manifest = fetch_manifest(&mut repository, &target).await?;
        if let Some(artifact) = job.known.get(&manifest.digest) {
            return Ok(Arc::clone(artifact));
        }
        let layout = Layout::from_manifest(&manifest.content)?;
        let config = fetch_blob(&mut repository, &layout.config).await?;
        component::check_config(&config)?;
        if let Some(key) = verification_key {
            verify_signature(&mut repository, &manifest.digest, key).await?;
        }
        let wasm = fetch_blob(&mut repository, &layout.layer).await?;
        let size = wasm.len();
        let (interface, packed) = checked_and_packed(wasm).await?;
        let artifact = Artifact {
            reference: image.manifest_reference(&manifest.digest),
            manifest: manifest.digest,
            digest: layout.layer.digest,
            size,
            packed,
            interface,
        };
        Ok(Arc::new(artifact))
    }

    /// The manifest that a reference leads to now. A tag that was resolved before is checked with `HEAD`, which registries do not
    /// count as a pull.
    async fn resolve_tag(repository: &mut Repository<'_>, job: &Job) -> Result<TagTarget, Failure> {
        let target = &job.key.image.target;
        if job.known.is_empty() || job.key.image.is_pinned() {
            return Ok(TagTarget::To(target.clone()));
        }
        let path = format!("manifests/{target}");
        let request = RegistryRequest {
            method: &Method::HEAD,
            path: &path,
            accept: layout::ACCEPT,
            limit: 0,
        };
        let digest = digest_of(&repository.send_with_retries(request).await?);
        let known = digest.as_ref().and_then(|digest| job.known.get(digest));
        Ok(match known {
            Some(artifact) => TagTarget::Known(Arc::clone(artifact)),
            None => TagTarget::To(digest.unwrap_or_else(|| target.clone())),
        })
    }

    /// The HTTP clients; new ones if the file with authorities has changed.
    async fn http_clients(&self) -> Result<Clients, Failure> {
        let authorities = match &self.settings.ca_file {
            None => Vec::new(),
            Some(path) => tokio::fs::read(path).await.map_err(|error| {
                let message = format!("can't read --registry-ca-file {}: {error}", path.display());
                Failure::temporary(FailureReason::RegistryUnavailable, message)
            })?,
        };
        let mut clients = self.clients.lock().await;
        if let Some((known, clients)) = &*clients
            && *known == authorities
        {
            return Ok(clients.clone());
        }
        let made = Clients::new(&self.settings, &authorities)?;
        *clients = Some((authorities, made.clone()));
        Ok(made)
    }
}

enum TagTarget {
    Known(Arc<Artifact>),
    To(String),
}

fn digest_of(response: &RegistryResponse) -> Option<String> {
    let text = response.headers.get(DIGEST_HEADER)?.to_str().ok()?;
    let digest: Digest = text.parse().ok()?;
    Some(digest.to_string())
}

async fn fetch_manifest(repository: &mut Repository<'_>, target: &str) -> Result<Manifest, Failure> {
    let path = format!("manifests/{target}");
    let request = RegistryRequest {
        method: &Method::GET,
        path: &path,
        accept: layout::ACCEPT,
        limit: layout::MAX_MANIFEST_BYTES,
    };
    let response = repository.send_with_retries(request).await?;
    let digest = Digest::of(&response.body).to_string();
    let announced = digest_of(&response);
    let expected = if target.contains(':') {
        Some(target)
    } else {
        announced.as_deref()
    };
    if let Some(expected) = expected.filter(|expected| *expected != digest) {
        return Err(digest_mismatch(
            &format!("manifest {expected}"),
            &format!("has digest {digest}"),
        ));
    }
    let content = layout::parse_manifest(&response.body)?;
    Ok(Manifest { digest, content })
}

async fn fetch_blob(repository: &mut Repository<'_>, blob: &Blob) -> Result<Bytes, Failure> {
    let path = format!("blobs/{}", blob.digest);
    let request = RegistryRequest {
        method: &Method::GET,
        path: &path,
        accept: "*/*",
        limit: blob.size,
    };
    let body = repository.send_with_retries(request).await?.body;
    let digest = Digest::of(&body);
    if digest != blob.digest {
        let found = format!(
            "has digest {digest} and {} bytes (announced: {})",
            body.len(),
            blob.size
        );
        return Err(digest_mismatch(&format!("blob {}", blob.digest), &found));
    }
    if body.len() != blob.size {
        let found = format!("has {} bytes, its manifest says {}", body.len(), blob.size);
        return Err(digest_mismatch(&format!("blob {}", blob.digest), &found));
    }
    Ok(body)
}

fn digest_mismatch(what: &str, found: &str) -> Failure {
    let message = format!(
        "{what} from the registry {found}; it is damaged or forged: push it again, or ask who runs the registry"
    );
    Failure::new(FailureReason::DigestMismatch, message)
}

/// Fails unless the manifest has a signature by the key.
async fn verify_signature(repository: &mut Repository<'_>, manifest: &str, key: &str) -> Result<(), Failure> {
    let key = VerificationKey::parse(key)
        .map_err(|problem| Failure::new(FailureReason::SignatureInvalid, format!("verificationKey {problem}")))?;
    let signatures = match fetch_manifest(repository, &signature::signature_tag(manifest)).await {
        Ok(signatures) => signature::signed_layers(&signatures.content),
        Err(failure) if failure.reason == FailureReason::NotFound => Vec::new(),
        Err(failure) => return Err(failure),
    };
    for signed in &signatures {
        let text = fetch_blob(repository, &signed.text).await?;
        if signed.is_of(manifest, &text, &key) {
            return Ok(());
        }
    }
    Err(signature::missing_signature(manifest, signatures.len()))
}

/// Runs on a blocking thread: 16 MiB take a good part of a second.
async fn checked_and_packed(wasm: Bytes) -> Result<(Interface, Bytes), Failure> {
    let packing = tokio::task::spawn_blocking(move || {
        let interface = component::check_component(&wasm)?;
        Ok((interface, Bytes::from(pack(&wasm))))
    });
    packing.await.unwrap_or_else(|error| {
        let message = format!("the component can't be read: {error}");
        Err(Failure::new(FailureReason::Incompatible, message))
    })
}
