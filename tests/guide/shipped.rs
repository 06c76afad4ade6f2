//! The test of step 5, word for word: main.rs compares it.

use ctrlmesh_proxy::harness::{Harness, request};
use ctrlmesh_proxy::verdict::RequestAction;
use http::Method;

pub(crate) fn shipped_bytes_refuse_a_write() {
    let wasm = std::fs::read("target/wasm32-wasip2/release/my_plugin.wasm").expect("build it first (step 4)");
    let mut plugin = Harness::new(&wasm, r#"{"readOnlyNamespaces": ["prod-*"]}"#).expect("a sidecar would run it");
    let write = request(Method::DELETE, "/api/v1/namespaces/prod-eu/pods/web");
    let verdict = plugin.request(&write).expect("no fault");
    assert!(matches!(verdict.action, RequestAction::Refuse(refusal) if refusal.code == 403));
    assert_eq!(plugin.metrics().len(), 1);
}
