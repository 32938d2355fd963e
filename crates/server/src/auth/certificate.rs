//! Client certificates: the user behind one that our CA signed.
//!
//! Certificates of others are accepted by TLS but name nobody: see [`mainstay_tls::ClientVerifier::optional`].

use mainstay_tls::Subject;

use super::User;

impl From<Subject> for User {
    /// The common name is the user, organizations are its groups.
    fn from(subject: Subject) -> Self {
        Self::authenticated(subject.common_name, subject.organizations)
    }
}
