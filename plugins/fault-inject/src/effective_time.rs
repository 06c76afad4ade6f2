//! When a rule is active: `effectiveTime` of a FaultInjection, plus additions.
//!
//! Guarantees:
//! - Every part that is set must hold independently: days apply without times, times without days.
//! - A daily time may pass midnight; it belongs to the day on which it begins.
//! - Both ends belong to the active time, to the second, as in the CRD's own engine.

use ctrlmesh_sdk::settings::Invalid;
use serde::Deserialize;

use crate::calendar::{DAY, Date, date_of_day, parse_rfc3339, parse_time_of_day, parse_time_zone};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct EffectiveTime {
    /// `HH:MM:SS` each day, or one moment in RFC 3339. Both ends must have the same format.
    pub(crate) start_time: Option<String>,
    pub(crate) end_time: Option<String>,
    /// `UTC` (default) or an offset. Not for RFC 3339, which has its own; days always use it.
    pub(crate) time_zone: Option<String>,
    /// 0 is Sunday. Unset or empty: every day; likewise below.
    pub(crate) days_of_week: Option<Vec<i64>>,
    pub(crate) days_of_month: Option<Vec<i64>>,
    pub(crate) months: Option<Vec<i64>>,
}

/// The validated times. Days and months are bit sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveTime {
    span: Span,
    offset: i64,
    weekdays: u32,
    days: u32,
    months: u32,
}

/// Bounds in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    Always,
    /// From one second of the day to another, which is smaller if midnight is in between.
    Daily(i64, i64),
    Once(i64, i64),
}

impl ActiveTime {
    /// Validates the settings.
    ///
    /// # Errors
    ///
    /// If a field is invalid; names the field.
    pub(crate) fn new(written: &EffectiveTime) -> Result<Self, Invalid> {
        let zone = written.time_zone.as_deref().unwrap_or_default();
        let set = |values: &Option<Vec<i64>>, field, range| {
            bit_set(values.as_deref().unwrap_or_default(), range).map_err(|error: Invalid| error.field(field))
        };
        Ok(Self {
            span: parse_span(set_text(&written.start_time), set_text(&written.end_time))?,
            offset: parse_time_zone(zone).map_err(|error| error.field("timeZone"))?,
            weekdays: set(&written.days_of_week, "daysOfWeek", (0, 6))?,
            days: set(&written.days_of_month, "daysOfMonth", (1, 31))?,
            months: set(&written.months, "months", (1, 12))?,
        })
    }

    /// Whether the rule is active at this moment (milliseconds since 1970).
    pub(crate) fn includes(&self, unix_ms: u64) -> bool {
        let seconds = i64::try_from(unix_ms / 1_000).unwrap_or(i64::MAX - DAY);
        let local = seconds + self.offset;
        let (today, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        match self.span {
            Span::Always => self.includes_date(date_of_day(today)),
            Span::Once(start, end) => (start..=end).contains(&seconds) && self.includes_date(date_of_day(today)),
            Span::Daily(start, end) if start < end => {
                (start..=end).contains(&second) && self.includes_date(date_of_day(today))
            }
            Span::Daily(start, _) if second >= start => self.includes_date(date_of_day(today)),
            Span::Daily(_, end) => second <= end && self.includes_date(date_of_day(today - 1)),
        }
    }

    /// A later moment before which the active time neither begins nor ends: the next one at which it could, in milliseconds since
    /// 1970.
    pub(crate) fn may_change_at(&self, unix_ms: u64) -> u64 {
        let seconds = i64::try_from(unix_ms / 1_000).unwrap_or(i64::MAX - DAY);
        let second = (seconds + self.offset).rem_euclid(DAY);
        // Seconds from now. Days begin at midnight; both ends belong to the active time, so it is over a second after its end.
        let midnight = DAY - second;
        let in_day = |at: i64| (at - second + DAY - 1).rem_euclid(DAY) + 1;
        let bounds = match self.span {
            Span::Always => [midnight, midnight],
            Span::Daily(start, end) => [in_day(start), in_day(end + 1)],
            Span::Once(start, end) => [start, end.saturating_add(1)].map(|at| at.saturating_sub(seconds)),
        };
        let next = bounds.into_iter().filter(|wait| *wait > 0).fold(midnight, i64::min);
        u64::try_from(seconds.saturating_add(next))
            .unwrap_or(u64::MAX)
            .saturating_mul(1_000)
    }

    fn includes_date(&self, date: Date) -> bool {
        let contains = |bits: u32, value: u8| bits & (1 << value) != 0;
        contains(self.weekdays, date.weekday) && contains(self.days, date.day) && contains(self.months, date.month)
    }
}

/// An empty text counts as unset, as in Go.
fn set_text(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn parse_span(start: Option<&str>, end: Option<&str>) -> Result<Span, Invalid> {
    if start.is_none() && end.is_none() {
        return Ok(Span::Always);
    }
    let is_moment = |text: &str| text.len() > "HH:MM:SS".len();
    if let (Some(start), Some(end)) = (start, end)
        && is_moment(start) != is_moment(end)
    {
        let message = "startTime and endTime are written in two ways; use HH:MM:SS for both, or RFC 3339 for both";
        return Err(Invalid::new(message).field("endTime"));
    }
    if start.or(end).is_some_and(is_moment) {
        let start = start.map_or(Ok(i64::MIN), |text| parse_moment(text, "startTime"))?;
        let end = end.map_or(Ok(i64::MAX), |text| parse_moment(text, "endTime"))?;
        if start > end {
            return Err(Invalid::new("it lies before startTime: the rule would never be in force").field("endTime"));
        }
        return Ok(Span::Once(start, end));
    }
    let start = start.map_or(Ok(0), |text| parse_daily(text, "startTime"))?;
    let end = end.map_or(Ok(DAY - 1), |text| parse_daily(text, "endTime"))?;
    if start == end {
        let message = "it is startTime: that is one second; leave both out for the whole day";
        return Err(Invalid::new(message).field("endTime"));
    }
    Ok(Span::Daily(start, end))
}

fn parse_moment(text: &str, field: &str) -> Result<i64, Invalid> {
    let message = || format!("{text:?} is no time; write HH:MM:SS, or a moment such as 2026-11-21T09:30:00+01:00");
    parse_rfc3339(text).ok_or_else(|| Invalid::new(message()).field(field))
}

fn parse_daily(text: &str, field: &str) -> Result<i64, Invalid> {
    let message = || format!("{text:?} is no time of day; write HH:MM:SS, from 00:00:00 to 23:59:59");
    parse_time_of_day(text).ok_or_else(|| Invalid::new(message()).field(field))
}

/// The values as bits; all bits if there are no values.
fn bit_set(values: &[i64], (from, to): (i64, i64)) -> Result<u32, Invalid> {
    let mut bits = 0;
    for (index, value) in values.iter().enumerate() {
        if !(from..=to).contains(value) {
            return Err(Invalid::new(format!("{value} is not within {from} to {to}")).index(index));
        }
        bits |= 1_u32 << value;
    }
    Ok(if values.is_empty() { u32::MAX } else { bits })
}
