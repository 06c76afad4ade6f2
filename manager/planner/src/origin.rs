//! Makes the reference in an entry to its object. Both `compile` and `switches`, which is below it, need it.

use ctrlmesh_contract::Origin;
use kube_core::{ObjectMeta, Resource};

/// The identity of an object, as entries have it.
pub(crate) fn origin_of<K: Resource<DynamicType = ()>>(object: &K) -> Origin {
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
