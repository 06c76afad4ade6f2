use std::time::Duration;

use crate::GoDuration;

#[test]
fn go_durations_are_parsed_like_go() {
    for (text, expected) in [
        ("0", Some(0)),
        ("300ms", Some(300_000_000)),
        ("1s", Some(1_000_000_000)),
        ("+5s", Some(5_000_000_000)),
        ("1m30s", Some(90_000_000_000)),
        ("1.5h", Some(5_400_000_000_000)),
        (".5s", Some(500_000_000)),
        ("1.s", Some(1_000_000_000)),
        ("2us", Some(2_000)),
        ("2µs", Some(2_000)),
        ("7ns", Some(7)),
        ("1h0.001s", Some(3_600_001_000_000)),
        ("", None),
        ("+", None),
        ("1", None),
        ("-1s", None),
        ("s", None),
        (".s", None),
        ("1.2.3s", None),
        ("1s5", None),
        ("1d", None),
        ("1 s", None),
        ("9999999999h", None),
        ("1e3s", None),
    ] {
        let expected = expected.map(|nanoseconds| GoDuration(Duration::from_nanos(nanoseconds)));
        assert_eq!(GoDuration::parse(text), expected, "{text:?}");
    }
}

#[test]
fn milliseconds_are_rounded_up() {
    for (text, expected) in [
        ("1ms", 1),
        ("1ns", 1),
        ("1.0000001s", 1001),
        ("2400h", 8_640_000_000),
        ("0", 0),
    ] {
        assert_eq!(GoDuration::parse(text).unwrap().as_millis_ceil(), expected, "{text}");
    }
}

#[test]
fn invalid_duration_error_says_what_to_write() {
    let error = serde_json::from_str::<GoDuration>("\"5 minutes\"")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"5 minutes\" is no duration; write a number and a unit"),
        "{error}"
    );
    let error = serde_json::from_str::<GoDuration>("10").unwrap_err().to_string();
    assert!(
        error.contains("is 10 without a unit; write 10s if seconds are meant, 10ms if milliseconds"),
        "{error}"
    );
    let error = serde_json::from_str::<GoDuration>("true").unwrap_err().to_string();
    assert!(error.contains("expected a number and a unit, such as 250ms"), "{error}");
}
