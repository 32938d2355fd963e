//! Text that others wrote, for a terminal: messages of nodes, output of programs in pods, names.

/// One line. Control characters must not reach the terminal of whoever reads it: they could hide, forge or run what follows.
pub fn printable(line: &str) -> String {
    let printable = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
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
    }
}
