//! Exec probe: runs a command in the container; exit code 0 within the timeout is success.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, EnvVar, ExecAction};
use mainstay_runtime::RuntimeError;

use super::{KEPT, Outcome, Target, format_duration};
use crate::spec::env::expand;

/// The runtime ends the command at its timeout; should it not answer, we do not wait for ever.
const SLACK: Duration = Duration::from_secs(10);

pub async fn attempt(target: &Target<'_>, exec: &ExecAction, timeout: Duration) -> Outcome {
    let command = expanded(exec.command.as_deref().unwrap_or_default(), target.container);
    let late = || {
        Outcome::Failure(format!(
            "command timed out: {:?} timed out after {}",
            command.join(" "),
            format_duration(timeout)
        ))
    };
    let run = target.runtime.exec(target.id, &command, Some(timeout), KEPT);
    match tokio::time::timeout(timeout.saturating_add(SLACK), run).await {
        Ok(Ok(output)) if output.exit_code == 0 => Outcome::Success,
        Ok(Ok(output)) => {
            let all = [output.stdout, output.stderr].concat();
            Outcome::Failure(String::from_utf8_lossy(&all[..all.len().min(KEPT)]).into_owned())
        }
        Err(_) | Ok(Err(RuntimeError::Timeout { .. })) => late(),
        Ok(Err(RuntimeError::NotFound { .. })) => Outcome::Gone,
        // A program that is not there will not answer tomorrow either.
        Ok(Err(RuntimeError::Start { why })) => Outcome::Failure(why),
        Ok(Err(error)) => Outcome::Errored(error.to_string()),
    }
}

/// `$(NAME)` stands for what the container's env says literally.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let env = container.env.as_deref().unwrap_or_default();
    command.iter().map(|word| expand(word, |name| literal_value(env, name))).collect()
}

/// Of several variables of a name, the last counts.
fn literal_value<'a>(env: &'a [EnvVar], name: &str) -> Option<&'a str> {
    let variable = env.iter().rev().find(|variable| variable.name == name)?;
    Some(variable.value.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_may_refer_to_the_containers_own_env() {
        let env = [EnvVar { name: "PORT".into(), value: Some("80".into()), value_from: None }];
        let expand = |word: &str| expand(word, |name| literal_value(&env, name));
        assert_eq!(expand("localhost:$(PORT)"), "localhost:80");
        assert_eq!(expand("$(NONE) $$(PORT) $x $"), "$(NONE) $(PORT) $x $");
        assert_eq!(expand("$(PORT"), "$(PORT");
    }
}
