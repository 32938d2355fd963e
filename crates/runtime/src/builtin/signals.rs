//! Parses stop signals: by name, by number, or the image's.

use nix::sys::signal::Signal;

const SIGTERM: i32 = 15;
/// The first of the numbered ones, as the C library counts.
const SIGRTMIN: i32 = 34;
const SIGRTMAX: i32 = 64;

/// The pod's, else the image's, else TERM.
pub fn stop_signal(pod: Option<&str>, image: Option<&str>) -> Result<i32, String> {
    match pod.filter(|name| !name.is_empty()) {
        Some(name) => parse(name).ok_or_else(|| format!("unknown stop signal {name:?}")),
        // An image that asks for something nobody knows is stopped as most are.
        None => Ok(image.and_then(parse).unwrap_or(SIGTERM)),
    }
}

/// `SIGTERM`, `term`, `15`, `SIGRTMIN+3`.
fn parse(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=SIGRTMAX).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let numbered = if let Some(rest) = short.strip_prefix("RTMIN") {
        Some(SIGRTMIN + if rest.is_empty() { 0 } else { rest.strip_prefix('+')?.parse().ok()? })
    } else if let Some(rest) = short.strip_prefix("RTMAX") {
        Some(SIGRTMAX - if rest.is_empty() { 0 } else { rest.strip_prefix('-')?.parse().ok()? })
    } else {
        None
    };
    match numbered {
        Some(number) => (SIGRTMIN..=SIGRTMAX).contains(&number).then_some(number),
        None => format!("SIG{short}").parse::<Signal>().ok().map(|signal| signal as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        let all = ["SIGTERM", "usr1", "9", "SIGRTMIN+3", "RTMAX-1", "SIGNOPE", "0", "RTMIN+99", ""];
        assert_eq!(all.map(parse), [Some(15), Some(10), Some(9), Some(37), Some(63), None, None, None, None]);
    }

    #[test]
    fn the_pod_wins_and_an_image_with_nonsense_gets_the_usual_one() {
        assert_eq!(stop_signal(Some("SIGQUIT"), Some("SIGINT")), Ok(3));
        assert_eq!(stop_signal(None, Some("SIGINT")), Ok(2));
        assert_eq!(stop_signal(None, Some("SIGNOPE")), Ok(15));
        assert!(stop_signal(Some("SIGNOPE"), None).is_err());
    }
}
