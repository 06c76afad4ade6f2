//! Certificates that the manager makes: a CA in a Secret, what it signed, and who trusts it.
//!
//! | file | holds |
//! |---|---|
//! | `ca` | a CA and its certificate in a Secret, replaced before they end so that nobody is cut off |
//! | `webhook_ca` | the one that API servers trust: webhooks |
//! | `mesh_ca` | those that containers trust, one for each namespace: sidecars |

pub mod ca;
pub mod mesh_ca;
pub mod webhook_ca;
