//! Durations as `@every` takes them: `1h30m`, `1.5s`.

use std::time::Duration;

/// Reads a duration; the error is worded as users of upstream know it.
pub fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = unsigned;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = match unit {
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            other => return Err(format!("time: unknown unit {other:?} in duration {text:?}")),
        };
        total += number * seconds;
        rest = next;
    }
    if unsigned.is_empty() {
        return Err(invalid());
    }
    Duration::try_from_secs_f64(total).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        let refused = [
            ("", r#"time: invalid duration """#),
            ("h", r#"time: invalid duration "h""#),
            ("-1h", r#"time: invalid duration "-1h""#),
            ("1.2.3s", r#"time: invalid duration "1.2.3s""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5d", r#"time: unknown unit "d" in duration "5d""#),
            ("99999999999999999999999h", r#"time: invalid duration "99999999999999999999999h""#),
        ];
        for (text, error) in refused {
            assert_eq!(parse(text), Err(error.to_owned()));
        }
    }
}
