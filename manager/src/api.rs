//! The custom resources, group `ctrlmesh.kusionstack.io/v1alpha1`. Fields are spelt as KusionStack's controller-mesh spells
//! them (`relateResources` and all), so that objects that people have apply unchanged; what is new stands beside them.
//!
//! Types, schemas and the rules that an API server can check (CEL) stand together. What it can't is [`crate::validate`]'s.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column has attributes of its own"
)]

pub mod circuit_breaker;
pub mod fault_injection;
pub mod manager_state;
pub mod plugin;
pub mod rules;
mod schemas;
pub mod selector;
pub mod sharding_config;
pub mod status;

pub use circuit_breaker::{CircuitBreaker, CircuitBreakerSpec};
pub use fault_injection::{FaultInjection, FaultInjectionSpec};
pub use manager_state::ManagerState;
pub use plugin::PluginRef;
pub use selector::{LabelSelector, Operator, Requirement};
pub use sharding_config::{ShardingConfig, ShardingConfigSpec};

/// Group and version of all kinds.
pub const API_VERSION: &str = "ctrlmesh.kusionstack.io/v1alpha1";
