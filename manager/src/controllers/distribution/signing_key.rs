//! The key that chains are signed with. The first manager that leads generates it and stores it in a Secret.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_contract::names::{CHAIN_KEY_SECRET, PUBLIC_KEY_FIELD};
use ctrlmesh_contract::signature::{PublicKeys, SigningKey};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use crate::cluster::{Context, Error, RbacRule, Scope};

/// PKCS #8 in base64, inside the Secret's own encoding.
const PRIVATE_FIELD: &str = "private";

pub(super) const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Namespace,
        group: "",
        resources: &["secrets"],
        verbs: &["get"],
        names: &[CHAIN_KEY_SECRET],
    },
    RbacRule {
        scope: Scope::Namespace,
        group: "",
        resources: &["secrets"],
        verbs: &["create"],
        names: &[],
    },
];

/// Reads the key, or generates one if there is none.
///
/// # Errors
/// The Secret can't be read or created, or holds no key. It is never replaced, because sidecars trust the key that they started
/// with.
pub(super) async fn load_key(context: &Context) -> Result<SigningKey, Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.args.namespace);
    if let Some(secret) = secrets.get_opt(CHAIN_KEY_SECRET).await? {
        return key_of_secret(&secret);
    }
    let key = SigningKey::generate()?;
    match secrets.create(&PostParams::default(), &secret_of_key(&key)?).await {
        Ok(_) => Ok(key),
        // Another manager was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => key_of_secret(&secrets.get(CHAIN_KEY_SECRET).await?),
        Err(error) => Err(error.into()),
    }
}

/// The public keys that sidecars are configured to trust: the current one, and perhaps the next.
///
/// # Errors
/// There is no key yet, or the Secret can't be read.
pub(crate) async fn public_key(secrets: &Api<Secret>) -> Result<String, Error> {
    let secret = secrets.get_opt(CHAIN_KEY_SECRET).await?;
    let text = secret
        .as_ref()
        .and_then(|secret| secret.data.as_ref()?.get(PUBLIC_KEY_FIELD));
    let text = text.and_then(|text| std::str::from_utf8(&text.0).ok()).map(str::trim);
    let text = text.ok_or(Error::NoKeyYet)?;
    text.parse::<PublicKeys>()?;
    Ok(text.to_owned())
}

fn key_of_secret(secret: &Secret) -> Result<SigningKey, Error> {
    let private = secret.data.as_ref().and_then(|data| data.get(PRIVATE_FIELD));
    let der = private
        .and_then(|private| STANDARD.decode(private.0.trim_ascii()).ok())
        .ok_or(Error::NoKey)?;
    SigningKey::from_pkcs8(&der).map_err(|_| Error::NoKey)
}

fn secret_of_key(key: &SigningKey) -> Result<Secret, Error> {
    let private = STANDARD.encode(key.to_pkcs8()?);
    let data = BTreeMap::from([
        (PRIVATE_FIELD.to_owned(), ByteString(private.into_bytes())),
        (
            PUBLIC_KEY_FIELD.to_owned(),
            ByteString(key.public_key().to_string().into_bytes()),
        ),
    ]);
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(CHAIN_KEY_SECRET.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_a_round_trip_through_its_secret() {
        let key = SigningKey::generate().unwrap();
        let read = key_of_secret(&secret_of_key(&key).unwrap()).unwrap();
        assert_eq!(read.sign(b"x"), key.sign(b"x"));
        assert!(matches!(key_of_secret(&Secret::default()), Err(Error::NoKey)));
    }
}
