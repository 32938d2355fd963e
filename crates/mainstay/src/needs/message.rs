//! What the message of the condition `DependenciesMet` says of each need: `mysql: 0 of 1 ready, job/x: is not complete (since …)`.

use mainstay_api::needs::NeedTarget;

/// How messages name what is needed.
pub fn needed_name(target: &NeedTarget) -> String {
    match target {
        NeedTarget::Service { service, .. } => service.to_string(),
        target @ (NeedTarget::Workload { .. } | NeedTarget::Object { .. }) => target.to_string(),
    }
}

/// What is missing of this need; nothing if the message is not about it.
pub fn find_missing(message: &str, name: &str) -> Option<String> {
    let start = format!("{name}: ");
    let parts = message.split(", ");
    let rest = parts.into_iter().find_map(|part| part.strip_prefix(&start))?;
    let end = rest.find('(').unwrap_or(rest.len());
    Some(rest[..end].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_found_by_its_whole_name() {
        let message = "my-db: 0 of 1 ready, job/x: is not complete (since 2026-01-01T00:00:00Z)";
        assert_eq!(find_missing(message, "my-db").as_deref(), Some("0 of 1 ready"));
        assert_eq!(find_missing(message, "job/x").as_deref(), Some("is not complete"));
        assert_eq!(find_missing(message, "db"), None);
        assert_eq!(find_missing(message, "x"), None);
    }
}
