//! Feeds bytes to `ctrlmesh_fuzz::object_uid`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ctrlmesh_fuzz::object_uid(data));
