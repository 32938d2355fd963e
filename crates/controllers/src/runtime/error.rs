//! API calls that failed: what was being done, what the API answered, and what that means for a controller.

/// What was being done, and how the API answered.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub struct ApiError {
    doing: String,
    #[source]
    source: kube::Error,
}

impl ApiError {
    pub fn new(doing: impl Into<String>, source: kube::Error) -> Self {
        Self { doing: doing.into(), source }
    }

    /// For `map_err`.
    pub fn when(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::new(doing, source)
    }

    /// Whether the object changed since it was read: the next reconcile sees what others did.
    pub fn is_conflict(&self) -> bool {
        has_code(&self.source, 409)
    }

    /// Whether the API refused it for good reasons of its own: a quota, a rule, a namespace that goes.
    pub fn is_rejected(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 404 | 422))
    }

    /// Whether the API did not answer, or not as an API that works does. Says nothing about the object.
    pub fn is_unavailable(&self) -> bool {
        match &self.source {
            kube::Error::Api(status) => status.code >= 500 || status.code == 429,
            kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => false,
            _ => true,
        }
    }

    /// Whether nothing can be created because the namespace is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        is_namespace_terminating(&self.source)
    }

    /// What the API answered, alone.
    pub fn message(&self) -> String {
        message(&self.source)
    }

    /// The whole chain, for a log or a condition.
    pub fn chain(&self) -> String {
        format!("{}: {}", self.doing, message(&self.source))
    }
}

/// Whether the API answered with this code.
pub fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether the API says that this object is not there. A 404 for a path it does not serve at all
/// names no object, and says nothing about objects.
pub fn is_not_found(error: &kube::Error, name: &str) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
        }
        _ => false,
    }
}

/// Whether the namespace is being deleted, so that nothing can be made in it.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| details.causes.iter());
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// The API's own words where there are any.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => mainstay_errors::error_chain(other),
    }
}
