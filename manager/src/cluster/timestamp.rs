//! The time, as an API server writes it.

use ctrlmesh_manager_api::status::timestamp;
use k8s_openapi::jiff::Timestamp;

pub(crate) fn now() -> String {
    timestamp(Timestamp::now())
}
