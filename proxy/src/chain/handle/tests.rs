use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use ctrlmesh_contract::Digest;
use prometheus_client::registry::Registry;

use super::super::in_flight::UNSETTLED_TIME;
use super::super::tests::test_handle;
use super::*;

fn unmetered_handle() -> Arc<ChainHandle> {
    test_handle(Metrics::new(&mut Registry::default()))
}

fn chain(generation: u64) -> Arc<Snapshot> {
    Arc::new(Snapshot::new(generation, Digest::of(b"document"), Vec::new()))
}

fn in_flight(writes: u64, lists: u64, watches: u64) -> InFlight {
    InFlight {
        writes,
        lists,
        watches,
        ..InFlight::default()
    }
}

/// Generation in force, and requests in flight under earlier chains.
fn generation_and_in_flight(handle: &ChainHandle) -> (u64, InFlight) {
    let chain = handle.status().chain;
    (chain.generation, chain.earlier)
}

#[test]
fn status_tells_missing_chain_from_one_that_never_comes() {
    let is_disabled = |required| {
        let metrics = Metrics::new(&mut Registry::default());
        ChainHandle::new(Pod::default(), required, metrics)
            .status()
            .chain
            .disabled
    };
    assert!(is_disabled(Required::Nothing));
    assert!(!is_disabled(Required::Chain));
}

#[test]
fn status_reports_requests_of_chain_once_it_is_replaced() {
    let (handle, counter) = (unmetered_handle(), Counter::new(0));
    let (_, before_the_first) = handle.begin_request(&counter, Kind::Watch);
    handle.apply(chain(1));
    let (snapshot, write) = handle.begin_request(&counter, Kind::Write);
    assert_eq!(snapshot.generation, 1);
    assert_eq!(generation_and_in_flight(&handle), (1, in_flight(0, 0, 1)));
    let (_, list) = handle.begin_request(&counter, Kind::List);
    handle.apply(chain(2));
    let (_, again) = handle.begin_request(&counter, Kind::Write);
    assert_eq!(generation_and_in_flight(&handle), (2, in_flight(1, 1, 1)));
    // The same document for a pod whose labels have changed.
    handle.apply(chain(2));
    assert_eq!(generation_and_in_flight(&handle), (2, in_flight(2, 1, 1)));
    drop((before_the_first, write));
    assert_eq!(generation_and_in_flight(&handle), (2, in_flight(1, 1, 0)));
    drop(list);
    assert_eq!(generation_and_in_flight(&handle), (2, in_flight(1, 0, 0)));
    drop(again);
    assert_eq!(generation_and_in_flight(&handle), (2, InFlight::default()));
    assert!(handle.lock_earlier().is_empty(), "nothing is kept of them");
}

#[tokio::test(start_paused = true)]
async fn writes_of_earlier_process_count_until_they_must_be_over() {
    let handle = unmetered_handle();
    handle.follow_another();
    assert_eq!(generation_and_in_flight(&handle), (0, in_flight(1, 0, 0)));
    handle.apply(chain(1));
    tokio::time::advance(UNSETTLED_TIME - Duration::from_millis(1)).await;
    assert_eq!(generation_and_in_flight(&handle), (1, in_flight(1, 0, 0)));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(generation_and_in_flight(&handle), (1, InFlight::default()));
}

#[test]
fn chain_without_requests_is_forgotten_without_status_query() {
    let (handle, counter) = (unmetered_handle(), Counter::new(0));
    let (_, watch) = handle.begin_request(&counter, Kind::Watch);
    for generation in 1..100 {
        handle.apply(chain(generation));
    }
    assert_eq!(handle.lock_earlier().len(), 1);
    assert_eq!(generation_and_in_flight(&handle), (99, in_flight(0, 0, 1)));
    drop(watch);
}

#[test]
fn request_uses_chain_that_comes_into_force_while_it_begins() {
    let (handle, counter) = (unmetered_handle(), Counter::new(0));
    handle.apply(chain(1));
    let mut next = 2;
    let (snapshot, in_flight_guard) = handle.enter_with(&counter, Kind::Write, || {
        if next <= 3 {
            handle.apply(chain(next));
            assert_eq!(
                generation_and_in_flight(&handle),
                (next, InFlight::default()),
                "it has not begun"
            );
            next += 1;
        }
    });
    assert_eq!(snapshot.generation, 3);
    assert_eq!(generation_and_in_flight(&handle), (3, InFlight::default()));
    handle.apply(chain(4));
    assert_eq!(generation_and_in_flight(&handle), (4, in_flight(1, 0, 0)));
    drop(in_flight_guard);
}

/// Marks a worker without a request in flight.
const IDLE: u64 = u64::MAX;

/// Begins and ends requests until `stop`. While one is in flight, `under` holds its generation.
fn run_requests(handle: &ChainHandle, worker: usize, under: &AtomicU64, stop: &AtomicBool) {
    let counter = Counter::new(worker);
    while !stop.load(Ordering::Relaxed) {
        for kind in [Kind::Write, Kind::List, Kind::Watch] {
            let (snapshot, in_flight_guard) = handle.begin_request(&counter, kind);
            under.store(snapshot.generation, Ordering::SeqCst);
            std::hint::spin_loop();
            under.store(IDLE, Ordering::SeqCst);
            drop(in_flight_guard);
        }
    }
}

#[test]
fn status_without_earlier_requests_means_no_thread_serves_earlier_chain() {
    const CHAINS: u64 = 2_000;
    let (handle, stop) = (unmetered_handle(), AtomicBool::new(false));
    let workers = [const { AtomicU64::new(IDLE) }; 3];
    std::thread::scope(|scope| {
        for (number, under) in workers.iter().enumerate() {
            let (handle, stop) = (&handle, &stop);
            scope.spawn(move || run_requests(handle, number, under, stop));
        }
        for generation in 1..=CHAINS {
            handle.apply(chain(generation));
            while handle.in_force().1 != InFlight::default() {
                std::thread::yield_now();
            }
            let oldest = workers.iter().map(|under| under.load(Ordering::SeqCst)).min();
            assert!(
                oldest >= Some(generation),
                "{oldest:?} is served, {generation} was told"
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}
