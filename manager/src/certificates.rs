//! Certificates that the manager issues: a CA in a Secret, the certificates that it signed, and the bundles with it.
//!
//! | file | holds |
//! |---|---|
//! | `webhook_ca` | the CA that API servers trust, for webhooks |
//! | `mesh_ca` | the CAs that containers trust, one for each namespace, for sidecars |
//! | `ca` | a CA and its certificate in a Secret, replaced before they expire so that no client is refused |
//! | `lifetimes` | lifetimes of CAs and certificates, and when they are replaced |

pub mod ca;
pub mod lifetimes;
pub mod mesh_ca;
pub mod webhook_ca;
