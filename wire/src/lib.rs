//! The Kubernetes API on the wire.

/// What a request does (apiserver `pkg/endpoints/request/requestinfo.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Stream changes.
    Watch,
    /// Create an object.
    Create,
    /// Replace an object.
    Update,
    /// Patch an object.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete a collection.
    DeleteCollection,
    /// The deprecated `/proxy/` prefix.
    Proxy,
    /// Not about a resource.
    NonResource,
}
