//! What templates call that the template engine does not bring along, or has other than Python.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, ViaDeserialize};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde_json::Value as Json;
use thiserror::Error as ThisError;

/// The variable that holds the time, in seconds since 1970.
pub(super) const NOW: &str = "__now";

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
}

/// The message of a template that refuses its messages.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

/// The message of `raise_exception`, if that is what the error is.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(Refusal(message)) = e.downcast_ref() {
            return Some(message.clone());
        }
        cause = e.source();
    }
    None
}

/// The time to tell templates.
pub(super) fn now(fixed: Option<u64>) -> u64 {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    fixed.unwrap_or_else(clock)
}

/// As Python's `datetime.now().strftime(format)`, in UTC.
fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    let seconds = state.lookup(NOW).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
    strftime(seconds, format)
}

fn strftime(seconds: u64, format: &str) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    // Far beyond any date to tell, and well within the arithmetic.
    let seconds = seconds.min(1 << 40);
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut day_of_year) = (1970, days);
    while day_of_year >= 365 + u64::from(leap(year)) {
        day_of_year -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let (mut month, mut day) = (0, day_of_year);
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (month_name, day_name) = (MONTHS[month], DAYS[(days as usize + 4) % 7]);
    let (day, month) = (day + 1, month + 1);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        // %-d: without the leading zero.
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let number = |n: u64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month as u64, 2),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(day_of_year + 1, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let code = other.map_or_else(String::new, String::from);
                let message = format!("strftime_now does not know %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
    }
    Ok(out)
}

/// As Python's `json.dumps(value, ensure_ascii=False)`: a space behind commas and colons, nothing escaped for HTML.
fn tojson(ViaDeserialize(value): ViaDeserialize<Json>, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        _ if indent.is_some() => (",", ": "),
        _ => (", ", ": "),
    };
    let style = Style {
        indent: indent.map(|n| n.min(16)),
        ascii: ascii.unwrap_or(false),
        sort: sort.unwrap_or(false),
        item,
        key,
    };
    let mut out = String::new();
    style.write(&value, 0, &mut out);
    Ok(out)
}

struct Style<'s> {
    indent: Option<usize>,
    ascii: bool,
    sort: bool,
    item: &'s str,
    key: &'s str,
}

impl Style<'_> {
    /// Values come from templates, whose engine bounds how deep they nest.
    fn write(&self, value: &Json, depth: usize, out: &mut String) {
        match value {
            Json::Array(items) => {
                self.list(['[', ']'], items, depth, out, |item, out| self.write(item, depth + 1, out));
            }
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|&(key, _)| key);
                }
                self.list(['{', '}'], &entries, depth, out, |(key, item), out| {
                    self.text(key, out);
                    out.push_str(self.key);
                    self.write(item, depth + 1, out);
                });
            }
            Json::String(text) => self.text(text, out),
            scalar => out.push_str(&scalar.to_string()),
        }
    }

    fn list<T>(
        &self,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        mut one: impl FnMut(&T, &mut String),
    ) {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(self.item);
            }
            self.line(depth + 1, out);
            one(item, out);
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        let quoted = Json::from(text).to_string();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_python_writes_them() {
        // date -u -d @N
        let at = |seconds, format| strftime(seconds, format).expect("known codes");
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(at(1_709_210_096, "%a %d %b %Y, %I:%M %p"), "Thu 29 Feb 2024, 12:34 PM");
        assert_eq!(at(951_782_399, "%F %T"), "2000-02-28 23:59:59");
        assert_eq!(at(4_102_444_800, "%-d.%-m.%y 100%%"), "1.1.00 100%");
        assert!(strftime(0, "%Q").is_err() && strftime(0, "%").is_err());
        assert!(strftime(u64::MAX, "%Y").is_ok());
    }
}
