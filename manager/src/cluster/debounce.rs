//! Merges triggers of passes: changes that follow each other fast lead to one pass, and no pass is delayed longer than that.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

/// Emits each key once, `time` after the first trigger of its batch. (The debounce of a controller starts anew with each change, so
/// a namespace that changes all the time would never get its pass.)
///
/// Ends when `triggers` do, after the remaining keys.
pub(crate) fn debounce<T: Eq + Hash>(triggers: impl Stream<Item = T>, time: Duration) -> impl Stream<Item = T> {
    let batches = stream::unfold(Box::pin(triggers.fuse()), move |mut triggers| async move {
        let mut batch = HashSet::from([triggers.next().await?]);
        let end = Instant::now() + time;
        while Instant::now() < end
            && let Ok(Some(next)) = timeout_at(end, triggers.next()).await
        {
            batch.insert(next);
        }
        Some((stream::iter(batch), triggers))
    });
    batches.flatten()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use tokio::sync::mpsc;

    use super::*;

    /// Long enough for triggers that are ready, however slow the machine is.
    const TIME: Duration = Duration::from_millis(300);

    fn channel() -> (mpsc::Sender<u8>, impl Stream<Item = u8>) {
        let (sender, receiver) = mpsc::channel(100);
        let stream = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
        (sender, stream)
    }

    #[tokio::test]
    async fn simultaneous_triggers_are_merged() {
        let (sender, triggers) = channel();
        for number in [1, 2, 1, 2, 1] {
            sender.try_send(number).unwrap();
        }
        let mut debounced = pin!(debounce(triggers, TIME));
        let begun = Instant::now();
        let mut first = [debounced.next().await, debounced.next().await];
        first.sort_unstable();
        assert_eq!(first, [Some(1), Some(2)]);
        assert!(begun.elapsed() >= TIME);
        assert!(debounced.next().now_or_never().is_none(), "that is all");
        sender.try_send(1).unwrap();
        assert_eq!(debounced.next().await, Some(1), "it is new again");
        sender.try_send(3).unwrap();
        drop(sender);
        assert_eq!(debounced.next().await, Some(3));
        assert_eq!(debounced.next().await, None);
    }

    #[tokio::test]
    async fn continuous_triggers_are_still_delivered() {
        let (sender, triggers) = channel();
        let sending = async {
            let mut often = tokio::time::interval(TIME / 30);
            loop {
                often.tick().await;
                sender.try_send(1).unwrap();
            }
        };
        let mut debounced = pin!(debounce(triggers, TIME));
        let received = async {
            for _ in 0..3 {
                assert_eq!(debounced.next().await, Some(1));
            }
        };
        let both = async {
            tokio::select! {
                () = sending => {}
                () = received => {}
            }
        };
        assert!(
            tokio::time::timeout(TIME * 30, both).await.is_ok(),
            "it waits for a gap"
        );
    }

    #[tokio::test]
    async fn zero_debounce_delivers_at_once() {
        let (sender, triggers) = channel();
        let mut debounced = pin!(debounce(triggers, Duration::ZERO));
        sender.try_send(1).unwrap();
        assert_eq!(debounced.next().await, Some(1));
    }
}
