use super::*;

const KIB: usize = 1 << 10;

fn connections(all: &ResponseMemory, count: usize) -> Vec<Arc<Unsent>> {
    let one = || Arc::new(Unsent::counted_in(all.clone()));
    std::iter::repeat_with(one).take(count).collect()
}

fn has_room(unsent: &Arc<Unsent>) -> bool {
    unsent.poll_room(&Context::from_waker(Waker::noop())).is_ready()
}

/// Hands over frames of 16 KiB for as long as there is room.
fn fill_connection(unsent: &Arc<Unsent>) -> Vec<Bytes> {
    let frame = || has_room(unsent).then(|| unsent.count(Bytes::from(vec![0; 16 * KIB])));
    std::iter::from_fn(frame).collect()
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn wake_count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn connection_has_room_again_when_bytes_are_written() {
    let unsent = Arc::new(Unsent::default());
    let half = || unsent.count(Bytes::from(vec![0; MOST_PER_CONNECTION / 2]));
    let first = half();
    assert!(has_room(&unsent));
    let second = half();
    assert!(!has_room(&unsent));
    let part = first.slice(..1);
    drop(first);
    assert!(!has_room(&unsent), "a part of it is still there");
    drop(part);
    assert!(has_room(&unsent) && unsent.waiting.lock().unwrap().is_empty());
    drop(second);
    assert_eq!((unsent.bytes(), unsent.all.unsent()), (0, 0));
}

#[test]
fn connections_that_read_nothing_leave_room_for_one_that_reads() {
    let all = ResponseMemory::within(4096 * KIB);
    let deaf = connections(&all, 30);
    let held: Vec<_> = deaf.iter().map(fill_connection).collect();
    assert!(all.unsent() >= 3500 * KIB, "{}", all.unsent());
    let reads = &connections(&all, 1)[0];
    for _ in 0..1000 {
        assert!(!fill_connection(reads).is_empty());
    }
    drop(held);
    assert_eq!(all.unsent(), 0);
}

#[test]
fn any_number_of_connections_stays_within_bound() {
    let all = ResponseMemory::within(4096 * KIB);
    let deaf = connections(&all, 1000);
    let held: Vec<_> = deaf.iter().map(fill_connection).collect();
    assert_eq!(all.unsent(), all.bound());
    drop(held);
}

#[test]
fn single_connection_leaves_more_than_half_of_low_bound() {
    let all = ResponseMemory::within(1024 * KIB);
    let connection = &connections(&all, 1)[0];
    let held = fill_connection(connection);
    assert_eq!(connection.bytes(), 448 * KIB);
    drop(held);
}

#[test]
fn waiting_response_is_woken_when_its_own_or_other_bytes_are_written() {
    let all = ResponseMemory::within(1024 * KIB);
    let [full, waits] = &connections(&all, 2)[..] else {
        unreachable!()
    };
    let mut held = vec![full.count(Bytes::from(vec![0; 768 * KIB]))];
    let own = waits.count(Bytes::from(vec![0; 256 * KIB]));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let cx = Context::from_waker(&waker);
    assert!(waits.poll_room(&cx).is_pending());
    assert!(waits.poll_room(&cx).is_pending(), "a second poll");
    drop(own);
    assert_eq!(woken.wake_count(), 1, "it has written");
    held.push(full.count(Bytes::from(vec![0; 256 * KIB])));
    assert!(waits.poll_room(&cx).is_pending());
    held.pop();
    assert_eq!(woken.wake_count(), 2, "another connection has written");
    assert!(waits.poll_room(&cx).is_ready());
}

#[test]
fn bytes_of_http1_count_until_they_are_written() {
    let all = ResponseMemory::within(1024 * KIB);
    let unsent = Arc::new(Unsent::counted_in(all.clone()));
    let unsent_counter = UnsentCounter::new(&unsent, true);
    let data = unsent_counter.count(Bytes::from(vec![0; 600 * KIB]));
    drop(data);
    assert!(!has_room(&unsent));
    unsent.written(200 * KIB);
    assert!(has_room(&unsent) && unsent.take_progress() && !unsent.take_progress());
    unsent.written(500 * KIB);
    assert_eq!(all.unsent(), 0, "heads are written, too");
    unsent.add(100);
    unsent.flushed();
    assert_eq!(all.unsent(), 0);
    unsent.add(100);
    drop((unsent_counter, unsent));
    assert_eq!(all.unsent(), 0, "the connection has ended");
}
