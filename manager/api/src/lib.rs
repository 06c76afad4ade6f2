//! The custom resources, group `ctrlmesh.kusionstack.io/v1alpha1`. Fields are spelt as KusionStack's controller-mesh spells them
//! (such as `relateResources`), so that existing objects apply unchanged; new fields are added beside them.
//!
//! | module | holds |
//! |---|---|
//! | [`crds`] | the CustomResourceDefinitions; `make crd` writes them to `deploy/crd` |
//! | `sharding_config`, `circuit_breaker`, `fault_injection`, `manager_state` | one kind each: types, schema, CEL rules |
//! | `plugin`, `rules`, `status` | parts that kinds share |
//! | [`schema`] | checks a document against its schema, as an API server does; schemas that no derive can express |
//! | `verification_key` | keys that sign plugins |
//! | [`document`] | fields of stored documents, whether or not they are valid objects |
//!
//! Rules that need more than one field's schema or CEL are in `ctrlmesh-manager-planner`. Nothing here reads a file, a clock or a
//! network.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column has attributes of its own"
)]

pub mod circuit_breaker;
pub mod crds;
pub mod document;
pub mod fault_injection;
pub mod manager_state;
pub mod plugin;
pub mod rules;
pub mod schema;
pub mod sharding_config;
pub mod status;
mod verification_key;

pub use circuit_breaker::{CircuitBreaker, CircuitBreakerSpec};
pub use ctrlmesh_contract::{LabelSelector, Operator, Requirement};
pub use fault_injection::{FaultInjection, FaultInjectionSpec};
pub use manager_state::ManagerState;
pub use plugin::PluginRef;
pub use sharding_config::{ShardingConfig, ShardingConfigSpec};
pub use verification_key::VerificationKey;

/// Group and version of all kinds.
pub const API_VERSION: &str = "ctrlmesh.kusionstack.io/v1alpha1";

/// Kinds of objects that a chain is compiled from.
pub const CHAIN_KINDS: [&str; 3] = ["ShardingConfig", "CircuitBreaker", "FaultInjection"];

/// Field manager of everything that the manager applies.
pub const FIELD_MANAGER: &str = "ctrlmesh-manager";

/// Label of objects that the manager creates for itself and for sidecars; its value is [`FIELD_MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
