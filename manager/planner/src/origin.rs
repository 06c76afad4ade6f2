//! Which object an entry of the chain is made from.

use ctrlmesh_contract::Origin;
use kube_core::{ObjectMeta, Resource};

/// The reference in an entry to the object that it is made from.
pub(crate) fn origin<K: Resource<DynamicType = ()>>(object: &K) -> Origin {
    let ObjectMeta {
        name, uid, generation, ..
    } = object.meta();
    Origin {
        kind: K::kind(&()).into_owned(),
        name: name.clone().unwrap_or_default(),
        uid: uid.clone().unwrap_or_default(),
        generation: generation
            .and_then(|number| u64::try_from(number).ok())
            .unwrap_or_default(),
    }
}
