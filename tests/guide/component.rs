//! Step 5's test for readers who use the engine as a library, verbatim except for the folder, in which a test of its own would start. main.rs compares it with the guide.

use std::path::Path;

use ctrlmesh_proxy::harness::{Harness, request};
use ctrlmesh_proxy::plugin::verdict::RequestAction;
use http::Method;

pub(crate) fn component_refuses_a_write(folder: &Path) {
    let wasm =
        std::fs::read(folder.join("target/wasm32-wasip2/release/my_plugin.wasm")).expect("build it first (step 4)");
    let mut plugin = Harness::new(&wasm, r#"{"readOnlyNamespaces": ["prod-*"]}"#).expect("a sidecar would run it");
    let write = request(Method::DELETE, "/api/v1/namespaces/prod-eu/pods/web");
    let verdict = plugin.request(&write).expect("no fault");
    assert!(matches!(verdict.action, RequestAction::Refuse(refusal) if refusal.code == 403));
    assert_eq!(plugin.metrics().len(), 1);
}
