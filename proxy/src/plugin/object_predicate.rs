//! The predicate of a `keep-objects` or `require-object-match` edit. Copies share it: a set may hold thousands of names.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use ctrlmesh_wire::objects::Predicate;

/// Which objects of a list or watch a client gets or of a collection it deletes, or what the object of a request has to match.
#[derive(Debug, Clone)]
pub struct ObjectPredicate(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    predicate: Predicate,
    /// Of the predicate, computed once.
    hash: u64,
}

impl ObjectPredicate {
    #[must_use]
    pub fn predicate(&self) -> &Predicate {
        &self.0.predicate
    }

    /// Estimated memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Shared>() + self.0.predicate.bytes()
    }
}

impl From<Predicate> for ObjectPredicate {
    fn from(predicate: Predicate) -> Self {
        let mut hasher = DefaultHasher::new();
        predicate.hash(&mut hasher);
        let hash = hasher.finish();
        Self(Rc::new(Shared { predicate, hash }))
    }
}

impl PartialEq for ObjectPredicate {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || (self.0.hash == other.0.hash && self.0.predicate == other.0.predicate)
    }
}

impl Eq for ObjectPredicate {}

impl Hash for ObjectPredicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}
