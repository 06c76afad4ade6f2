//! Feeds bytes to `ctrlmesh_fuzz::filtered_list`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ctrlmesh_fuzz::filtered_list(data));
