//! Selectors in queries.

use mainstay_api::selector::{Fields, Labels};

pub fn labels(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(selector) = Labels::parse(text) {
        for value in [None, Some(""), Some("1"), Some(text)] {
            let _ = selector.matches(|_| value);
        }
    }
    if let Ok(tree) = serde_json::from_str(text) {
        let _ = Labels::from_selector(&tree);
        let _ = Labels::from_map(&tree);
    }
}

pub fn fields(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(selector) = Fields::parse(text) else { return };
    let _ = selector.exact("metadata.name");
    let _ = (selector.matches(|_| None), selector.matches(|_| Some("a")));
}
