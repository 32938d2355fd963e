//! Calls that failed: what was being done, what the API answered, and what that means for a controller.
//!
//! Controllers of a cloud call another API as well; what that one answered is the source of an [`ApiError::other`].

/// What was being done, and how the API answered.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub struct ApiError {
    doing: String,
    #[source]
    source: CallError,
}

#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Kubernetes(kube::Error),
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl ApiError {
    pub fn new(doing: impl Into<String>, source: kube::Error) -> Self {
        Self { doing: doing.into(), source: CallError::Kubernetes(source) }
    }

    /// A call to something else than the Kubernetes API failed.
    pub fn other(doing: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { doing: doing.into(), source: CallError::Other(Box::new(source)) }
    }

    /// For `map_err`.
    pub fn when(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::new(doing, source)
    }

    /// Whether the object changed since it was read: the next reconcile sees what others did.
    pub fn is_conflict(&self) -> bool {
        self.kubernetes().is_some_and(|source| has_code(source, 409))
    }

    /// Whether the API refused it for good reasons of its own: a quota, a rule, a namespace that goes.
    pub fn is_rejected(&self) -> bool {
        matches!(self.kubernetes(), Some(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 404 | 422))
    }

    /// Whether the API did not answer, or not as an API that works does. Says nothing about the object.
    pub fn is_unavailable(&self) -> bool {
        match self.kubernetes() {
            Some(kube::Error::Api(status)) => status.code >= 500 || status.code == 429,
            Some(kube::Error::SerdeError(_) | kube::Error::BuildRequest(_)) | None => false,
            Some(_) => true,
        }
    }

    /// Whether nothing can be created because the namespace is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        self.kubernetes().is_some_and(is_namespace_terminating)
    }

    /// What the API answered, alone.
    pub fn message(&self) -> String {
        match &self.source {
            CallError::Kubernetes(source) => message(source),
            CallError::Other(source) => mainstay_errors::error_chain(source.as_ref()),
        }
    }

    /// The whole chain, for a log or a condition.
    pub fn chain(&self) -> String {
        format!("{}: {}", self.doing, self.message())
    }

    fn kubernetes(&self) -> Option<&kube::Error> {
        match &self.source {
            CallError::Kubernetes(source) => Some(source),
            CallError::Other(_) => None,
        }
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
