//! Dates and times of day from milliseconds since 1970, in a fixed offset from UTC. Pure.
//!
//! Names of time zones (`Europe/Vienna`) are not supported on purpose: their table would be larger than the rest of the plugin.

use ctrlmesh_sdk::settings::Invalid;

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    /// Month, 1 to 12.
    pub(crate) month: u8,
    /// Day of the month, 1 to 31.
    pub(crate) day: u8,
    /// Day of the week, 0 is Sunday.
    pub(crate) weekday: u8,
}

/// The date of a day number (0 is 1970-01-01). Howard Hinnant's `civil_from_days` (chrono-Compatible Low-Level Date
/// Algorithms): years begin in March, so that a leap day is the last of its year.
pub(crate) fn date_of_day(day_number: i64) -> Date {
    let shifted = day_number + 719_468;
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let small = |number: i64| u8::try_from(number).unwrap_or_default();
    Date {
        month: small(if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        }),
        day: small(day_of_year - (153 * month_from_march + 2) / 5 + 1),
        // 1970-01-01 was a Thursday.
        weekday: small((day_number + 4).rem_euclid(7)),
    }
}

/// The inverse of [`date_of_day`].
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Seconds since 1970 of an RFC 3339 text such as `2026-11-21T09:30:00+01:00`. Fractions of a second are dropped.
pub(crate) fn parse_rfc3339(text: &str) -> Option<i64> {
    let (day, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, zone) = rest.split_at_checked(8)?;
    let zone = match zone.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => zone,
    };
    let [year, month, day_of_month] = parse_numbers(day, '-', [4, 2, 2])?;
    let number = day_number(year, month, day_of_month);
    let date = date_of_day(number);
    // 30 February comes back as 2 March.
    let exists = i64::from(date.month) == month && i64::from(date.day) == day_of_month;
    let seconds = number * DAY + parse_time_of_day(time)? - parse_offset(zone).filter(|_| !zone.is_empty())?;
    exists.then_some(seconds)
}

/// Seconds of the day for a text such as `23:59:59`.
pub(crate) fn parse_time_of_day(text: &str) -> Option<i64> {
    let [hours, minutes, seconds] = parse_numbers(text, ':', [2, 2, 2])?;
    (hours < 24 && minutes < 60 && seconds < 60).then_some(hours * 3_600 + minutes * 60 + seconds)
}

/// Seconds east of UTC of `UTC`, `Z`, `+02:00`, `-0530` or `+2`.
fn parse_offset(text: &str) -> Option<i64> {
    if ["", "UTC", "GMT", "Z", "z"].contains(&text) {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits = text.get(1..)?;
    let (hours, minutes) = match (digits.split_once(':'), digits.len()) {
        (Some(parts), _) => parts,
        (None, 4) => digits.split_at(2),
        (None, _) => (digits, "00"),
    };
    let hours = parse_number(hours, 1..=2)?;
    let minutes = parse_number(minutes, 2..=2)?;
    (hours <= 14 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Seconds east of UTC.
///
/// # Errors
///
/// If the text is no offset; the message says what to write instead.
pub(crate) fn parse_time_zone(text: &str) -> Result<i64, Invalid> {
    parse_offset(text).ok_or_else(|| {
        Invalid::new(format!(
            "{text:?} is no time zone here; write UTC or an offset such as +02:00 (names of zones are not known)"
        ))
    })
}

fn parse_numbers(text: &str, separator: char, lengths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut next = |length: usize| parse_number(parts.next()?, length..=length);
    let [first, second, third] = lengths;
    let numbers = [next(first)?, next(second)?, next(third)?];
    parts.next().is_none().then_some(numbers)
}

fn parse_number(text: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let is_number = lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
