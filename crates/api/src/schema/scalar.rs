//! Strings with a format: RFC 3339 times and base64 bytes.

use jiff::{Timestamp, civil, tz::Offset};

/// Checks an RFC 3339 time and rewrites it as whole seconds of UTC.
pub fn conform_time(text: &mut String) -> Result<(), String> {
    if is_canonical(text.as_bytes()) {
        return Ok(());
    }
    let time = parse_time(text, "2006-01-02T15:04:05Z07:00")?;
    *text = time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    Ok(())
}

/// Checks an RFC 3339 time and rewrites it as microseconds of UTC.
pub fn conform_micro_time(text: &mut String) -> Result<(), String> {
    let time = parse_time(text, "2006-01-02T15:04:05.000000Z07:00")?;
    // Before 1970 the fraction counts backwards from the next second.
    let micros = time.subsec_nanosecond().rem_euclid(1_000_000_000) / 1000;
    *text = format!("{}.{micros:06}Z", time.strftime("%Y-%m-%dT%H:%M:%S"));
    Ok(())
}

/// `2006-01-02T15:04:05Z` with a day and time that exist in every month: what clients send most.
fn is_canonical(text: &[u8]) -> bool {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, b'Z'] = text else {
        return false;
    };
    let two = |a: &u8, b: &u8| (a.is_ascii_digit() && b.is_ascii_digit()).then(|| (a - b'0') * 10 + (b - b'0'));
    two(y1, y2).is_some_and(|century| century > 0)
        && two(y3, y4).is_some()
        && matches!(two(m1, m2), Some(1..=12))
        && matches!(two(d1, d2), Some(1..=28))
        && matches!(two(h1, h2), Some(0..=23))
        && matches!(two(n1, n2), Some(0..=59))
        && matches!(two(s1, s2), Some(0..=59))
}

fn parse_time(text: &str, layout: &str) -> Result<Timestamp, String> {
    let mut reader = Reader { text, at: 0 };
    let refused = |problem: String| format!("parsing time {text:?} as {layout:?}: {problem}");
    let broken = |reader: &Reader, element: &str| {
        refused(format!("cannot parse {:?} as {element:?}", text.get(reader.at..).unwrap_or_default()))
    };
    let range = |what: &str| format!("parsing time {text:?}: {what} out of range");

    let mut numbers = [0i16; 6];
    let elements = [("2006", 4, "-"), ("01", 2, "-"), ("02", 2, "T"), ("15", 2, ":"), ("04", 2, ":"), ("05", 2, "")];
    for (number, (element, digits, separator)) in numbers.iter_mut().zip(elements) {
        *number = reader.number(digits).ok_or_else(|| broken(&reader, element))?;
        reader.literal(separator).ok_or_else(|| broken(&reader, separator))?;
    }
    let nanos = reader.fraction();
    let offset = reader.offset().ok_or_else(|| broken(&reader, "Z07:00"))?;
    if reader.at != text.len() {
        return Err(refused(format!("extra text: {:?}", text.get(reader.at..).unwrap_or_default())));
    }

    let [year, month, day, hour, minute, second] = numbers;
    let date = civil::Date::new(year, month as i8, day as i8)
        .map_err(|_| range(if (1..=12).contains(&month) { "day" } else { "month" }))?;
    let what = if hour > 23 {
        "hour"
    } else if minute > 59 {
        "minute"
    } else {
        "second"
    };
    let time = civil::Time::new(hour as i8, minute as i8, second as i8, nanos).map_err(|_| range(what))?;
    let offset = Offset::from_seconds(offset).map_err(|_| range("time zone offset hour"))?;
    offset.to_timestamp(date.to_datetime(time)).map_err(|_| range("year"))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn number(&mut self, digits: usize) -> Option<i16> {
        let text = self.text.get(self.at..self.at + digits)?;
        let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())??;
        self.at += digits;
        Some(number)
    }

    fn literal(&mut self, literal: &str) -> Option<()> {
        self.text.get(self.at..)?.starts_with(literal).then(|| self.at += literal.len())
    }

    /// Nanoseconds of an optional fraction; finer digits are cut off.
    fn fraction(&mut self) -> i32 {
        let rest = &self.text.as_bytes()[self.at..];
        let digits = match rest {
            [b'.' | b',', digits @ ..] => digits.iter().take_while(|b| b.is_ascii_digit()).count(),
            _ => 0,
        };
        if digits == 0 {
            return 0;
        }
        let nanos = (0..9).fold(0, |nanos, i| nanos * 10 + if i < digits { i32::from(rest[i + 1] - b'0') } else { 0 });
        self.at += digits + 1;
        nanos
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Option<i32> {
        let sign = match self.text.as_bytes().get(self.at)? {
            b'Z' => {
                self.at += 1;
                return Some(0);
            }
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let start = self.at;
        self.at += 1;
        let seconds = self.number(2).and_then(|hours| {
            self.literal(":")?;
            Some(i32::from(hours) * 3600 + i32::from(self.number(2)?) * 60)
        });
        if seconds.is_none() {
            self.at = start;
        }
        Some(sign * seconds?)
    }
}

/// Checks base64 as the API reads it: padded, line breaks ignored.
pub fn conform_bytes(text: &mut String) -> Result<(), String> {
    let refused = |at: usize| Err(format!("illegal base64 data at input byte {at}"));
    let bytes = text.as_bytes();
    let is_break = |b: &u8| matches!(b, b'\n' | b'\r');
    let (mut in_group, mut padding, mut group_start, mut breaks) = (0, 0, 0, false);
    for (at, byte) in bytes.iter().enumerate() {
        if is_break(byte) {
            breaks = true;
            continue;
        }
        if in_group == 0 {
            if padding > 0 {
                return refused(at);
            }
            group_start = at;
        }
        match byte {
            b'=' if in_group >= 2 => padding += 1,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => {}
            _ => return refused(at),
        }
        in_group = (in_group + 1) % 4;
    }
    if in_group != 0 {
        return refused(if padding > 0 { bytes.len() } else { group_start });
    }
    if breaks {
        text.retain(|c| !matches!(c, '\n' | '\r'));
    }
    Ok(())
}
