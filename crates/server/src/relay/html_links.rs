//! Rewrites links in proxied HTML, so that they lead back through the proxy.
//!
//! A page behind `/api/v1/namespaces/a/pods/b/proxy/` that links to `/login` means its own `/login`, not the API server's. As
//! upstream's proxy transport: absolute paths of the page's own host get the prefix of the proxy, in the attributes that
//! hold URLs; relative links and those to other hosts stay. The page is rewritten as it comes, a tag at a time.
//! Compressed pages pass unchanged; `proxy` asks for pages without compression.

use std::{borrow::Cow, io};

use bytes::Bytes;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};

/// A longer tag passes unchanged.
const MAX_TAG: usize = 8 * 1024;

/// Turns links of one page into links through the proxy.
pub struct LinkRewriter {
    /// The path of the proxy, without a slash at its end.
    prefix: String,
    /// The hosts that are the page's own: the one it was asked from, and the one that the client named.
    own_hosts: Vec<String>,
    /// What has come and is not passed on: the beginning of a tag, or of what ends a comment or script.
    pending: Vec<u8>,
    /// Text without tags goes on until this.
    verbatim_until: Option<&'static str>,
}

impl LinkRewriter {
    pub fn new(prefix: &str, own_hosts: Vec<String>) -> Self {
        let prefix = prefix.trim_end_matches('/').to_owned();
        Self { prefix, own_hosts, pending: Vec::new(), verbatim_until: None }
    }

    /// The URL through the proxy; `None` if it is good as it is.
    pub fn rewrite_url(&self, url: &str) -> Option<String> {
        let (host, path) = match url.split_once("://") {
            Some(("http" | "https", rest)) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            Some(_) => return None,
            None => match url.strip_prefix("//") {
                Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
                None => ("", url),
            },
        };
        let is_other_host = !host.is_empty() && !self.own_hosts.iter().any(|own| own == host);
        if is_other_host || !path.starts_with('/') {
            return None;
        }
        let has_prefix = path.strip_prefix(&self.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match (has_prefix, host) {
            (true, "") => None,
            (true, _) => Some(path.to_owned()),
            (false, _) => Some(format!("{}{path}", self.prefix)),
        }
    }

    /// What can be passed on, now that more has come.
    fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut page = std::mem::take(&mut self.pending);
        page.extend_from_slice(piece);
        let (mut rest, mut out) = (&page[..], Vec::with_capacity(page.len() + 64));
        while let Some(taken) = self.step(rest, &mut out) {
            rest = &rest[taken..];
        }
        self.pending = rest.to_vec();
        out
    }

    /// Passes on what is understood of `pending`, and says how much that was; `None` if more has to come.
    fn step(&mut self, pending: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if let Some(end) = self.verbatim_until {
            let (taken, found) = match find_ignoring_case(pending, end.as_bytes()) {
                Some(at) => (at, true),
                None => (pending.len().saturating_sub(end.len() - 1), false),
            };
            out.extend_from_slice(&pending[..taken]);
            if found {
                self.verbatim_until = None;
            }
            return (found || taken > 0).then_some(taken);
        }
        let text = pending.iter().position(|byte| *byte == b'<').unwrap_or(pending.len());
        if text > 0 {
            out.extend_from_slice(&pending[..text]);
            return Some(text);
        }
        match pending.get(1)? {
            b'!' if pending.len() < 4 && b"<!--".starts_with(pending) => None,
            b'!' if pending.starts_with(b"<!--") => {
                out.extend_from_slice(b"<!--");
                self.verbatim_until = Some("-->");
                Some(4)
            }
            byte if byte.is_ascii_alphabetic() => match tag_length(pending) {
                Some(length) => {
                    let tag = &pending[..length];
                    out.extend_from_slice(&self.rewrite_tag(tag));
                    self.verbatim_until = VERBATIM.iter().find(|(name, _)| *name == tag_name(tag)).map(|(_, end)| *end);
                    Some(length)
                }
                None if pending.len() > MAX_TAG => {
                    out.extend_from_slice(pending);
                    Some(pending.len())
                }
                None => None,
            },
            _ => {
                out.push(b'<');
                Some(1)
            }
        }
    }

    fn rewrite_tag<'t>(&self, tag: &'t [u8]) -> Cow<'t, [u8]> {
        let name = tag_name(tag);
        let Some((_, attributes)) = URL_ATTRIBUTES.iter().find(|(element, _)| *element == name) else {
            return Cow::Borrowed(tag);
        };
        let (mut out, mut copied) = (Vec::new(), 0);
        for (attribute, value) in attributes_of(tag) {
            if attributes.contains(&attribute.as_str())
                && let Ok(url) = std::str::from_utf8(&tag[value.clone()])
                && let Some(rewritten) = self.rewrite_url(url)
            {
                out.extend_from_slice(&tag[copied..value.start]);
                out.extend_from_slice(rewritten.as_bytes());
                copied = value.end;
            }
        }
        if copied == 0 {
            return Cow::Borrowed(tag);
        }
        out.extend_from_slice(&tag[copied..]);
        Cow::Owned(out)
    }

    /// The page with its links rewritten.
    pub fn rewrite_body(self, body: BoxStream<'static, io::Result<Bytes>>) -> BoxStream<'static, io::Result<Bytes>> {
        stream::unfold(Some((self, body)), async |state| {
            let (mut rewriter, mut body) = state?;
            loop {
                match body.next().await {
                    Some(Ok(piece)) => {
                        let out = rewriter.feed(&piece);
                        if !out.is_empty() {
                            return Some((Ok(out.into()), Some((rewriter, body))));
                        }
                    }
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => return Some((Ok(rewriter.pending.into()), None)),
                }
            }
        })
        .boxed()
    }
}

/// Elements whose content is no HTML, and what ends them.
const VERBATIM: [(&str, &str); 4] =
    [("script", "</script"), ("style", "</style"), ("textarea", "</textarea"), ("title", "</title")];

/// The attributes that hold URLs.
const URL_ATTRIBUTES: [(&str, &[&str]); 26] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("track", &["src"]),
    ("video", &["poster", "src"]),
];

fn find_ignoring_case(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window.eq_ignore_ascii_case(wanted))
}

/// How long the tag is that these bytes begin with: a `>` in a quoted value does not end it.
fn tag_length(bytes: &[u8]) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            // Only a value is quoted: elsewhere an apostrophe is text.
            (None, b'"' | b'\'') if bytes[..at].trim_ascii_end().ends_with(b"=") => quote = Some(*byte),
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    None
}

fn tag_name(tag: &[u8]) -> String {
    let name = tag[1..].split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>')).next();
    String::from_utf8_lossy(name.unwrap_or_default()).to_ascii_lowercase()
}

/// Names of attributes in lower case, and where their values are.
fn attributes_of(tag: &[u8]) -> Vec<(String, std::ops::Range<usize>)> {
    let (mut found, mut at) = (Vec::new(), 1 + tag_name(tag).len());
    let skip = |from: usize, what: &dyn Fn(u8) -> bool| {
        from + tag[from..].iter().position(|byte| !what(*byte)).unwrap_or(tag.len() - from)
    };
    let is_space = |byte: u8| byte.is_ascii_whitespace();
    while at < tag.len() {
        let start = skip(at, &|byte| is_space(byte) || byte == b'/');
        let end = skip(start, &|byte| !is_space(byte) && !matches!(byte, b'=' | b'>' | b'/'));
        let name = String::from_utf8_lossy(&tag[start..end]).to_ascii_lowercase();
        let after = skip(end, &is_space);
        if tag.get(after) != Some(&b'=') {
            at = after.max(start + 1);
            continue;
        }
        let first = skip(after + 1, &is_space);
        let value = match tag.get(first) {
            Some(quote @ (b'"' | b'\'')) => first + 1..skip(first + 1, &|byte| byte != *quote),
            _ => first..skip(first, &|byte| !is_space(byte) && byte != b'>'),
        };
        at = value.end + 1;
        found.push((name, value));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/a/pods/http:b:80/proxy";

    fn rewriter() -> LinkRewriter {
        LinkRewriter::new(PREFIX, vec!["10.0.0.1:80".to_owned(), "localhost:8001".to_owned()])
    }

    /// The page, fed in pieces of this size.
    fn rewritten(page: &str, size: usize) -> String {
        let mut rewriter = rewriter();
        let mut out: Vec<u8> = page.as_bytes().chunks(size).flat_map(|piece| rewriter.feed(piece)).collect();
        out.extend(rewriter.pending);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn absolute_paths_of_the_page_itself_get_the_prefix() {
        for (url, expected) in [
            ("/rewriteme", Some("/rewriteme")),
            ("/", Some("/")),
            ("/a/?q=1#top", Some("/a/?q=1#top")),
            ("http://10.0.0.1:80/a", Some("/a")),
            ("//localhost:8001/a", Some("/a")),
            ("http://10.0.0.1:80", None),
            ("a/b", None),
            ("?q", None),
            ("#top", None),
            ("", None),
            ("https://example.org/a", None),
            ("mailto:a@example.org", None),
            ("ftp://10.0.0.1:80/a", None),
        ] {
            let expected = expected.map(|path| format!("{PREFIX}{path}"));
            assert_eq!(rewriter().rewrite_url(url), expected, "{url}");
        }
        assert_eq!(rewriter().rewrite_url(&format!("{PREFIX}/a")), None);
        assert_eq!(rewriter().rewrite_url(&format!("http://10.0.0.1:80{PREFIX}/a")), Some(format!("{PREFIX}/a")));
        assert!(rewriter().rewrite_url(&format!("{PREFIX}d")).is_some(), "another path that begins alike");
    }

    #[test]
    fn attributes_are_rewritten_in_whatever_pieces_the_page_comes() {
        let page = "<!DOCTYPE html><html><head><title>a < b <a href=\"/t\"></title>\
            <script src='/s.js'>if (a<b) { x = '<a href=\"/s\">' }</script></head><!-- <a href=\"/c\"> -->\
            <body><A class=x HREF=\"/rewriteme\">it's 1 > 0</A><img alt=\"a>b\" src=/i.png><a href='b'>c</a>\
            <p title=\"/p\">5 < 6</p><form action = \"/f\"/></body></html>";
        let expected = page
            .replace("src='/s.js'", &format!("src='{PREFIX}/s.js'"))
            .replace("HREF=\"/rewriteme\"", &format!("HREF=\"{PREFIX}/rewriteme\""))
            .replace("src=/i.png", &format!("src={PREFIX}/i.png"))
            .replace("action = \"/f\"", &format!("action = \"{PREFIX}/f\""));
        for size in [1, 2, 3, 7, 4096] {
            assert_eq!(rewritten(page, size), expected, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_html_passes_unchanged() {
        for page in
            ["", "<", "a < b", "<a", "<a href=\"/x", "<!-", "<!-- ", "</", "<a =>", "<a / = \"/x\" >", "\u{0}<\u{1}"]
        {
            assert_eq!(rewritten(page, 1), page);
        }
        let endless = format!("<a href=\"/x{}", "x".repeat(MAX_TAG));
        assert_eq!(rewritten(&endless, 1000), endless);
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_out_whole_and_alike_in_any_pieces(page in "[a<>/=\"' !x-]{0,60}", size in 1..9usize) {
            proptest::prop_assert_eq!(rewritten(&page, size), rewritten(&page, 1 << 20));
        }
    }
}
