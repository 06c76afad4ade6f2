//! The few lines that the process writes to standard output and error by itself; everything else is the log's.

use crate::app::Addresses;

/// One JSON line that tells where the sidecar listens: scripts and tests start it on port 0.
#[expect(clippy::print_stdout, reason = "this line is the process's interface")]
pub fn listening(addresses: &Addresses) {
    let named = [
        ("api", addresses.api.first().copied()),
        ("admin", Some(addresses.admin)),
        ("external", addresses.external),
    ];
    let listening: std::collections::BTreeMap<_, _> = named
        .into_iter()
        .filter_map(|(name, address)| Some((name, address?.to_string())))
        .collect();
    let line = serde_json::json!({ "listening": listening });
    println!("{line}");
}

/// What went wrong before there is a log.
#[expect(clippy::print_stderr, reason = "there is no log yet")]
pub fn failure(message: &str) {
    eprintln!("ctrlmesh-proxy: {message}");
}
