//! Splits a command line as a shell would, as far as tests need it: spaces and single quotes.

#[track_caller]
pub fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, begun) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    assert!(!quoted, "a quote is not closed: {line}");
    if begun {
        words.push(word);
    }
    words
}

#[test]
fn quotes_keep_spaces_and_may_be_empty() {
    assert_eq!(split("get  pods -l 'a in (b)' ''"), ["get", "pods", "-l", "a in (b)", ""]);
    assert_eq!(split("-o=jsonpath='{.a} {.b}'"), ["-o=jsonpath={.a} {.b}"]);
}
