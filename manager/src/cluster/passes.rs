//! Runs the passes of a controller until it stops.

use std::future::pending;
use std::hash::Hash;

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use kube::Resource;
use kube::runtime::reflector::Store;
use tokio_util::sync::CancellationToken;

/// Runs passes until `stop`, with which the controller must stop too. Passes that have begun are finished. `store`: the objects that
/// the controller reconciles.
///
/// `kube` delays all passes until the store is ready. A controller that is stopped before would wait for that for ever, because
/// its watches have ended; so it is dropped.
pub(crate) async fn run_passes<K>(passes: impl Stream, store: &Store<K>, stop: &CancellationToken)
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let stopped_before_ready = async {
        stop.cancelled().await;
        if store.wait_until_ready().now_or_never().is_some() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = passes.for_each(async |_| ()) => {}
        () = stopped_before_ready => {}
    }
}
