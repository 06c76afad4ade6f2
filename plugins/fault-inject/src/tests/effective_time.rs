//! Times in which a rule is active, and invalid times.

use proptest::prelude::*;

use super::support::rule_error;
use crate::calendar::{date_of_day, parse_rfc3339, parse_time_of_day};
use crate::effective_time::{ActiveTime, EffectiveTime};

fn parse_active_time(json: &str) -> ActiveTime {
    ActiveTime::new(&serde_json::from_str::<EffectiveTime>(json).unwrap()).unwrap()
}

fn is_active_at(json: &str, moment: &str) -> bool {
    let seconds = parse_rfc3339(moment).unwrap_or_else(|| panic!("{moment}"));
    parse_active_time(json).includes(u64::try_from(seconds).unwrap() * 1_000)
}

#[test]
fn active_time_includes_both_ends() {
    let time = r#"{"startTime": "09:00:00", "endTime": "17:00:00"}"#;
    for (moment, expected) in [
        ("2026-11-21T08:59:59Z", false),
        ("2026-11-21T09:00:00Z", true),
        ("2026-11-21T17:00:00Z", true),
        ("2026-11-21T17:00:01Z", false),
    ] {
        assert_eq!(is_active_at(time, moment), expected, "{moment}");
    }
}

#[test]
fn active_time_over_midnight_belongs_to_its_first_day() {
    // 2026-11-20 is a Friday.
    let time = r#"{"startTime": "22:00:00", "endTime": "02:00:00", "daysOfWeek": [5]}"#;
    for (moment, expected) in [
        ("2026-11-20T01:00:00Z", false),
        ("2026-11-20T21:59:59Z", false),
        ("2026-11-20T22:00:00Z", true),
        ("2026-11-21T02:00:00Z", true),
        ("2026-11-21T02:00:01Z", false),
        ("2026-11-21T23:00:00Z", false),
    ] {
        assert_eq!(is_active_at(time, moment), expected, "{moment}");
    }
}

#[test]
fn days_and_months_follow_the_time_zone() {
    assert!(is_active_at(r#"{"daysOfWeek": [0, 6]}"#, "2026-11-21T12:00:00Z"));
    assert!(!is_active_at(r#"{"daysOfWeek": [1]}"#, "2026-11-21T12:00:00Z"));
    assert!(is_active_at(
        r#"{"daysOfMonth": [29], "months": [2]}"#,
        "2028-02-29T12:00:00Z"
    ));
    assert!(!is_active_at(r#"{"months": [12]}"#, "2026-11-30T23:30:00Z"));
    assert!(is_active_at(
        r#"{"months": [12], "timeZone": "+01:00"}"#,
        "2026-11-30T23:30:00Z"
    ));
    assert!(is_active_at(
        r#"{"daysOfWeek": [], "months": []}"#,
        "2026-11-30T23:30:00Z"
    ));
}

#[test]
fn start_or_end_of_active_time_may_be_omitted() {
    assert!(is_active_at(r#"{"startTime": "12:00:00"}"#, "2026-11-21T23:59:59Z"));
    assert!(!is_active_at(r#"{"startTime": "12:00:00"}"#, "2026-11-21T11:59:59Z"));
    assert!(is_active_at(
        r#"{"endTime": "12:00:00", "startTime": ""}"#,
        "2026-11-21T00:00:00Z"
    ));
    assert!(!is_active_at(
        r#"{"endTime": "2026-11-21T00:00:00Z"}"#,
        "2026-11-21T00:00:01Z"
    ));
}

#[test]
fn invalid_times_are_refused_by_field() {
    for (time, error) in [
        (
            r#"{"startTime": "9:00:00"}"#,
            "startTime: \"9:00:00\" is no time of day",
        ),
        (r#"{"endTime": "24:00:00"}"#, "endTime: \"24:00:00\" is no time of day"),
        (
            r#"{"startTime": "2026-02-30T00:00:00Z"}"#,
            "startTime: \"2026-02-30T00:00:00Z\" is no time",
        ),
        (
            r#"{"startTime": "2026-02-03T00:00:00"}"#,
            "startTime: \"2026-02-03T00:00:00\" is no time",
        ),
        (
            r#"{"startTime": "10:00:00", "endTime": "2026-02-03T00:00:00Z"}"#,
            "endTime: startTime and endTime are written",
        ),
        (
            r#"{"startTime": "10:00:00", "endTime": "10:00:00"}"#,
            "endTime: it is startTime",
        ),
        (
            r#"{"startTime": "2026-02-03T00:00:00Z", "endTime": "2026-02-02T00:00:00Z"}"#,
            "endTime: it lies before",
        ),
        (
            r#"{"timeZone": "Europe/Vienna"}"#,
            "timeZone: \"Europe/Vienna\" is no time zone here; write UTC or an offset",
        ),
        (r#"{"daysOfWeek": [1, 7]}"#, "daysOfWeek[1]: 7 is not within 0 to 6"),
        (r#"{"daysOfMonth": [0]}"#, "daysOfMonth[0]: 0 is not within 1 to 31"),
        (r#"{"months": [13]}"#, "months[0]: 13 is not within 1 to 12"),
        (r#"{"weekdays": [1]}"#, "weekdays: unknown field"),
    ] {
        let text = rule_error(&format!(r#""do": "refuse", "effectiveTime": {time}"#));
        assert!(text.starts_with(&format!("faults[0].effectiveTime.{error}")), "{text}");
    }
}

#[test]
fn time_zone_offsets_have_several_spellings() {
    let noon = parse_rfc3339("2026-11-21T12:00:00Z");
    assert!(noon.is_some());
    for text in [
        "2026-11-21T14:00:00+02:00",
        "2026-11-21T06:30:00-0530",
        "2026-11-21t12:00:00.123z",
        "2026-11-21 12:00:00Z",
    ] {
        assert_eq!(parse_rfc3339(text), noon, "{text}");
    }
    for text in [
        "2026-11-21T12:00:00+15:00",
        "2026-11-21T12:00:00+2:0",
        "2026-1-21T12:00:00Z",
        "",
        "2026-11-21",
    ] {
        assert_eq!(parse_rfc3339(text), None, "{text}");
    }
    assert_eq!(
        (parse_time_of_day("23:59:59"), parse_time_of_day("23:59")),
        (Some(86_399), None)
    );
}

proptest! {
    #[test]
    fn dates_follow_each_other(day in -100_000_i64..1_000_000) {
        let (today, tomorrow) = (date_of_day(day), date_of_day(day + 1));
        prop_assert_eq!((today.weekday + 1) % 7, tomorrow.weekday);
        prop_assert!((1..=12).contains(&today.month) && (1..=31).contains(&today.day));
        let is_next_day = tomorrow.month == today.month && tomorrow.day == today.day + 1;
        let is_next_month = tomorrow.day == 1 && tomorrow.month == today.month % 12 + 1;
        prop_assert!(is_next_day || is_next_month);
    }

    #[test]
    fn active_time_stays_as_it_is_until_it_may_change(
        shape in 0_usize..5,
        (start, length) in (0_i64..86_400, 1_i64..86_400),
        weekdays in proptest::collection::vec(0_i64..7, 0..3),
        offset in -14_i64..=14,
        (now_s, ms, part) in (1_700_000_000_u64..1_700_400_000, 0_u64..1_000, 0.0_f64..1.0),
    ) {
        let time = |second: i64| {
            let second = second.rem_euclid(86_400);
            format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
        };
        let moment = |second: i64| format!("2023-11-{:02}T{}Z", 15 + second.div_euclid(86_400), time(second));
        let zone = format!("{}{:02}:00", if offset < 0 { '-' } else { '+' }, offset.abs());
        let mut written = serde_json::json!({"daysOfWeek": weekdays, "timeZone": zone});
        let (first, last) = match shape {
            0 => (None, None),
            1 => (Some(time(start)), Some(time(start + length))),
            2 => (Some(moment(start)), Some(moment(start + length))),
            3 => (Some(time(start)), None),
            _ => (None, Some(moment(start))),
        };
        written["startTime"] = first.into();
        written["endTime"] = last.into();
        let active_time = parse_active_time(&written.to_string());
        let now = now_s * 1_000 + ms;
        let change = active_time.may_change_at(now);
        prop_assert!(change > now && change <= now + 86_400_000, "{now} {change}");
        let until_then = (change - now) as f64 * part;
        for later in [now + until_then as u64, change - 1] {
            prop_assert_eq!(active_time.includes(later), active_time.includes(now), "{} {} {}", written, now, later);
        }
    }

    #[test]
    fn time_parsers_never_panic(text in ".{0,40}") {
        let _ = (parse_rfc3339(&text), parse_time_of_day(&text));
    }
}
