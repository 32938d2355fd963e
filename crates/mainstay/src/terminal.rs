//! Text that others wrote, for a terminal: messages of nodes, output of programs in pods, names.

/// One line. Control characters, and those that change the direction of writing, must not reach the terminal of whoever reads it: they could
/// hide, forge or run what follows.
pub fn printable(line: &str) -> String {
    let printable = |c: char| match c {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    line.chars().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{9b}2J\u{7}"), "a\u{fffd}[31mb c\u{fffd}2J\u{fffd}");
        assert_eq!(printable("check\u{202e}dessap\u{2066}\u{2028}ä"), "check\u{fffd}dessap\u{fffd} ä");
    }
}
