use super::*;
use crate::failure::FailureReason;

fn parsed_retry_after(text: &str) -> Option<Duration> {
    let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
    retry_after(&headers, "2026-11-22T08:49:30Z".parse().unwrap())
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    assert_eq!(parsed_retry_after("7"), Some(Duration::from_secs(7)));
    assert_eq!(
        parsed_retry_after("Sun, 22 Nov 2026 08:49:37 GMT"),
        Some(Duration::from_secs(7))
    );
    assert_eq!(
        parsed_retry_after("Sun, 22 Nov 2026 08:49:00 GMT"),
        Some(Duration::ZERO)
    );
    assert_eq!(parsed_retry_after("soon"), None);
    assert_eq!(retry_after(&HeaderMap::new(), Timestamp::now()), None);
}

#[test]
fn retries_double_pause_spread_it_and_end() {
    let times = Times {
        pause: Duration::from_secs(1),
        ..Times::default()
    };
    let trouble = || Failure::temporary(FailureReason::RegistryUnavailable, "down");
    let pauses = |random| {
        let mut attempts = Attempts::new(&times);
        std::iter::from_fn(|| attempts.next_pause(trouble(), random).ok()).collect::<Vec<_>>()
    };
    assert_eq!(pauses(u16::MAX), [1, 2, 4].map(Duration::from_secs));
    assert_eq!(pauses(0), [500, 1000, 2000].map(Duration::from_millis));
}

#[test]
fn retry_after_is_honoured_up_to_a_limit() {
    let times = Times::default();
    let asked = |pause| Failure {
        again: Retry::After(pause),
        ..Failure::temporary(FailureReason::RegistryUnavailable, "429")
    };
    let mut attempts = Attempts::new(&times);
    assert_eq!(
        attempts.next_pause(asked(Duration::from_secs(3)), 0),
        Ok(Duration::from_secs(3))
    );
    let long = asked(times.max_retry_after + Duration::from_secs(1));
    assert_eq!(attempts.next_pause(long.clone(), 0), Err(long));
    let never = Failure::new(FailureReason::NotFound, "none");
    assert_eq!(Attempts::new(&times).next_pause(never.clone(), 0), Err(never));
}
