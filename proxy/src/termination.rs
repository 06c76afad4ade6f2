//! SIGTERM and SIGINT as a future.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end. If signals can't be heard it never returns: kubelet kills after the grace
/// period.
pub async fn requested() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals can't be heard: the sidecar will be killed instead of drained");
        return std::future::pending().await;
    };
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "draining");
}
