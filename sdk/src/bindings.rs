//! The output of `wit-bindgen` for `wit/`, and nothing else. Re-exported piece by piece from the crate root.
#![allow(
    missing_docs,
    unsafe_code,
    clippy::too_many_arguments,
    reason = "generated; documented in wit/*.wit"
)]

wit_bindgen::generate!({
    path: "wit",
    world: "plugin",
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "ctrlmesh_sdk::bindings",
    additional_derives: [PartialEq],
});
