//! Why a request to a registry failed, in words that say what to mend: a name that does not resolve, a port where nobody
//! listens, a certificate that is not trusted, each with the host it was about. Pure.

use std::{error::Error, io};

use mainstay_errors::error_chain;
use oci_client::errors::{OciEnvelope, OciError};

/// What hyper calls a failed lookup of a name.
const DNS_ERROR: &str = "dns error";
/// How the C library begins all of its reasons for that.
const LOOKUP: &str = "failed to lookup address information: ";

/// More of an answer, which may be a whole page, is of no use in an event.
const LONGEST_MESSAGE: usize = 200;

/// `host` is whom the request went to, as `host` or `host:port`.
pub fn explain(host: &str, error: &(dyn Error + 'static)) -> String {
    let chain: Vec<&(dyn Error + 'static)> = std::iter::successors(Some(error), |&error| error.source()).collect();
    if let Some(at) = chain.iter().position(|error| error.to_string() == DNS_ERROR) {
        let reason = chain[at..].last().map(|error| error.to_string()).unwrap_or_default();
        let reason = reason.strip_prefix(LOOKUP).unwrap_or(&reason);
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        return format!("cannot resolve {name}: {reason}");
    }
    if let Some(error) = chain.iter().find_map(|error| tls_error(*error)) {
        return match error {
            rustls::Error::InvalidMessage(_) => {
                format!("{host} does not speak TLS; a registry without TLS has to be named with --insecure-registry")
            }
            error => format!("TLS with {host} failed: {error}"),
        };
    }
    let by_system =
        |error: &&(dyn Error + 'static)| error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    match chain.iter().find_map(by_system) {
        Some(code) => format!("cannot connect to {host}: {}", io::Error::from_raw_os_error(code)),
        None => error_chain(error),
    }
}

/// The messages of a registry's answer; its error codes where there are none.
pub fn message_of(envelope: &OciEnvelope) -> String {
    let message = |error: &OciError| match error.message.is_empty() {
        true => format!("{:?}", error.code),
        false => error.message.clone(),
    };
    envelope.errors.iter().map(message).collect::<Vec<String>>().join("; ")
}

/// The same of an answer of a token server.
pub fn message_of_body(body: &str) -> String {
    message_in_body(body).unwrap_or_else(|| "authentication failed".to_owned())
}

/// The same of an answer that may be anything: registries and their token servers agree on no format. Nothing if it says nothing.
pub fn message_in_body(body: &str) -> Option<String> {
    let shortened = |text: &str| text.trim().chars().take(LONGEST_MESSAGE).collect::<String>();
    if let Ok(envelope) = serde_json::from_str::<OciEnvelope>(body) {
        return Some(shortened(&message_of(&envelope)));
    }
    let json = serde_json::from_str::<serde_json::Value>(body).unwrap_or_default();
    let field = ["details", "message", "error"].iter().find_map(|name| json[name].as_str());
    let first_line = body.trim().lines().next().unwrap_or_default();
    Some(shortened(field.unwrap_or(first_line))).filter(|text| !text.is_empty())
}

/// An `io::Error` shows what it wraps, which may be another one, to nobody who only follows `source()`.
fn tls_error<'a>(mut error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    loop {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        error = error.downcast_ref::<io::Error>()?.get_ref()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    }

    /// As reqwest and hyper wrap what went wrong.
    fn explained(layers: &[&'static str], innermost: impl Into<Box<dyn Error + Send + Sync>>) -> String {
        let wrap = |source, text: &&'static str| Box::new(Layer { text, source }) as Box<dyn Error + Send + Sync>;
        let error = layers.iter().rev().fold(innermost.into(), wrap);
        explain("registry.example:5000", error.as_ref())
    }

    const SENDING: &str = "error sending request for url (https://registry.example:5000/v2/)";
    const CONNECT: &str = "client error (Connect)";

    #[test]
    fn a_name_that_does_not_resolve_is_reported_once_and_without_the_url() {
        let lookup = io::Error::other("failed to lookup address information: Name or service not known");
        assert_eq!(
            explained(&[SENDING, CONNECT, "dns error"], lookup),
            "cannot resolve registry.example: Name or service not known"
        );
    }

    #[test]
    fn a_closed_port_and_an_unreachable_network_are_the_words_of_the_system() {
        let refused = explained(&[SENDING, CONNECT, "tcp connect error"], io::Error::from_raw_os_error(111));
        assert_eq!(refused, "cannot connect to registry.example:5000: Connection refused (os error 111)");
        let unreachable = explained(&[SENDING, CONNECT], io::Error::from_raw_os_error(101));
        assert_eq!(unreachable, "cannot connect to registry.example:5000: Network is unreachable (os error 101)");
    }

    #[test]
    fn an_untrusted_certificate_and_a_registry_without_tls_are_distinguished() {
        let untrusted = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert_eq!(
            explained(&[SENDING, CONNECT], io::Error::other(untrusted)),
            "TLS with registry.example:5000 failed: invalid peer certificate: UnknownIssuer"
        );
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let plain = explained(&[SENDING, CONNECT], io::Error::other(io::Error::other(plain)));
        assert!(plain.contains("does not speak TLS") && plain.contains("--insecure-registry"), "{plain}");
    }

    #[test]
    fn an_answer_is_reduced_to_its_message() {
        let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"},{"code":"DENIED"}]}"#;
        assert_eq!(message_of_body(body), "who are you; Denied");
        assert_eq!(
            message_of_body(r#"{"details":"incorrect username or password"}"#),
            "incorrect username or password"
        );
        assert_eq!(message_of_body("Bad Request\n<html>"), "Bad Request");
        assert_eq!(message_of_body(" "), "authentication failed");
        assert_eq!(message_of_body(&"x".repeat(5000)).len(), LONGEST_MESSAGE);
    }

    #[test]
    fn anything_else_keeps_its_whole_chain() {
        assert_eq!(explained(&["a", "b"], "c"), "a: b: c");
    }
}
