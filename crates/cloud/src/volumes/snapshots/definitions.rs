//! The CustomResourceDefinitions of snapshots. Those that somebody installed are left as they are.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, api::PostParams};
use mainstay_controllers::runtime::{ApiError, error};

const DEFINITIONS: &str = include_str!("definitions.yaml");
/// How soon the API is asked again whether they are served.
const POLL: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("the definitions of snapshots")]
struct Malformed(#[from] serde_saphyr::Error);

/// Returns when all are served; goes on through failures of the API.
pub async fn ensure(client: &Client) {
    loop {
        match ensure_once(client).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(error = error.chain(), "cannot create the definitions of snapshots yet"),
        }
        tokio::time::sleep(POLL).await;
    }
}

fn definitions() -> Result<Vec<CustomResourceDefinition>, Malformed> {
    Ok(serde_saphyr::from_str(DEFINITIONS)?)
}

/// Whether all are served.
async fn ensure_once(client: &Client) -> Result<bool, ApiError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut all_served = true;
    for wanted in definitions().map_err(|error| ApiError::other("read them", error))? {
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let found = api.get_opt(&name).await.map_err(ApiError::when(format!("get definition {name}")))?;
        let found = match found {
            Some(found) => found,
            None => match api.create(&PostParams::default(), &wanted).await {
                Ok(created) => created,
                Err(failure) if error::has_code(&failure, 409) => wanted, // another server was faster
                Err(failure) => return Err(ApiError::new(format!("create definition {name}"), failure)),
            },
        };
        all_served &= is_served(&found);
    }
    Ok(all_served)
}

fn is_served(definition: &CustomResourceDefinition) -> bool {
    let mut conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::snapshots::kinds::GROUP;

    #[test]
    fn the_definitions_are_those_of_the_three_kinds() {
        let names: Vec<_> = definitions().unwrap().into_iter().filter_map(|one| one.metadata.name).collect();
        let expected = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];
        assert_eq!(names, expected.map(|plural| format!("{plural}.{GROUP}")));
    }
}
