//! Service users: who a Kluster is in its cloud, with the roles that its controllers need in its project and no others.
//!
//! The password is written to a Secret before the user is made, so that a crash between the two leaves a user whose password is known: it is set
//! anew. The user is an entry of the ledger and bears its tag as description; one of the same name without it is somebody else's, and is left alone.

use std::io::Read;

use mainstay_api::{
    cloud::{
        cloud_resource::{ResourceOwner, ResourceType},
        kluster::Kluster,
    },
    encode::to_yaml,
};
use serde_json::json;

use super::{names::cloud_authorities_path, settings::ServiceUserSettings};
use crate::{
    ledger::{Intent, ResourceDriver},
    openstack::{
        CloudError, SecretText, Session,
        identity::{NewUser, Role},
    },
};

const PASSWORD_LENGTH: usize = 40;

/// Why a Kluster cannot have its user.
#[derive(Debug, thiserror::Error)]
pub enum ServiceUserError {
    #[error("the cloud has no domain {0}, in which users of Klusters are made")]
    NoDomain(String),
    #[error("the cloud has no role {0}, which users of Klusters get")]
    NoRole(String),
    #[error("domain {domain} has a user {name} that is not this Kluster's")]
    Foreign { domain: String, name: String },
    #[error("{doing}")]
    Cloud {
        doing: &'static str,
        #[source]
        source: Box<CloudError>,
    },
}

fn failed(doing: &'static str) -> impl FnOnce(CloudError) -> ServiceUserError {
    move |source| ServiceUserError::Cloud { doing, source: Box::new(source) }
}

/// `kubernikus-<name>`: unique, since the object's name is unique in its namespace and the uid tells namespaces apart.
pub fn user_name(kluster: &Kluster) -> String {
    let uid: String = kluster.metadata.uid.iter().flat_map(|uid| uid.chars()).take(8).collect();
    format!("kubernikus-{}-{uid}", kluster.name())
}

pub fn generate_password() -> std::io::Result<SecretText> {
    const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    let mut bytes = [0; PASSWORD_LENGTH];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 64)])).collect();
    Ok(SecretText::new(text))
}

pub fn owner(kluster: &Kluster) -> ResourceOwner {
    ResourceOwner {
        api_version: "mainstay.dev/v1".to_owned(),
        kind: "Kluster".to_owned(),
        namespace: kluster.metadata.namespace.clone().unwrap_or_default(),
        name: kluster.name().to_owned(),
        uid: kluster.metadata.uid.clone().unwrap_or_default(),
    }
}

pub fn intent(kluster: &Kluster, session: &Session) -> Intent {
    Intent {
        cloud: session.cloud_name().to_owned(),
        project: kluster.spec.openstack.project_id.clone(),
        resource: ResourceType::User,
        name: user_name(kluster),
        slot: "service-user".to_owned(),
        parent: String::new(),
        owner: owner(kluster),
    }
}

/// What the Kluster's own controllers log in with.
pub fn clouds_yaml(kluster: &Kluster, session: &Session, domain: &str, password: &SecretText) -> String {
    let mut cloud = json!({
        "auth": {
            "auth_url": session.auth_url(),
            "username": user_name(kluster),
            "password": password.expose(),
            "user_domain_name": domain,
            "project_id": kluster.spec.openstack.project_id,
        },
    });
    if let Some(region) = session.region() {
        cloud["region_name"] = json!(region);
    }
    if session.authorities().is_some() {
        cloud["cacert"] = json!(cloud_authorities_path());
    }
    to_yaml(&json!({"clouds": {"own": cloud}}))
}

/// A user of Keystone, found by the tag in its description.
pub struct UserDriver {
    session: Session,
    domain: String,
    domain_name: String,
    name: String,
    project: String,
    password: SecretText,
}

impl UserDriver {
    pub async fn new(
        session: &Session,
        settings: &ServiceUserSettings,
        kluster: &Kluster,
        password: SecretText,
    ) -> Result<Self, ServiceUserError> {
        let domains = session.identity().list_domains(Some(&settings.domain)).await;
        let domain = domains.map_err(failed("list domains"))?.into_iter().next();
        let domain = domain.ok_or_else(|| ServiceUserError::NoDomain(settings.domain.clone()))?;
        Ok(Self {
            session: session.clone(),
            domain: domain.id,
            domain_name: settings.domain.clone(),
            name: user_name(kluster),
            project: kluster.spec.openstack.project_id.clone(),
            password,
        })
    }

    /// Whether somebody else has the name.
    pub async fn refuse_foreign(&self, tag: &str) -> Result<(), ServiceUserError> {
        let users = self.session.identity().list_users(Some(&self.name), Some(&self.domain)).await;
        match users.map_err(failed("list users"))?.iter().any(|user| user.description != tag) {
            true => Err(ServiceUserError::Foreign { domain: self.domain_name.clone(), name: self.name.clone() }),
            false => Ok(()),
        }
    }

    /// Gives the user its password and the roles that it lacks.
    pub async fn equip(&self, user: &str, roles: &[String]) -> Result<(), ServiceUserError> {
        let identity = self.session.identity();
        identity.set_user_password(user, &self.password).await.map_err(failed("set the password of the user"))?;
        let known = identity.list_roles().await.map_err(failed("list roles"))?;
        let has = identity.list_user_roles(&self.project, user).await.map_err(failed("list roles of the user"))?;
        for role in missing_roles(roles, &known, &has)? {
            identity.assign_role(&self.project, user, &role).await.map_err(failed("assign a role"))?;
        }
        Ok(())
    }
}

/// Ids of roles that a user is to have and has not.
fn missing_roles(wanted: &[String], known: &[Role], has: &[Role]) -> Result<Vec<String>, ServiceUserError> {
    let mut missing = Vec::new();
    for name in wanted {
        let role = known.iter().find(|role| role.name.eq_ignore_ascii_case(name));
        let role = role.ok_or_else(|| ServiceUserError::NoRole(name.clone()))?;
        if !has.iter().any(|own| own.id == role.id) {
            missing.push(role.id.clone());
        }
    }
    Ok(missing)
}

impl ResourceDriver for UserDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let users = self.session.identity().list_users(Some(&self.name), Some(&self.domain)).await?;
        Ok(users.into_iter().filter(|user| user.description == tag).map(|user| user.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let user = NewUser {
            name: self.name.clone(),
            domain: self.domain.clone(),
            password: self.password.clone(),
            description: tag.to_owned(),
            default_project: None,
        };
        Ok(self.session.identity().create_user(&user).await?.id)
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.session.identity().delete_user(id).await.map(drop)
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        let users = self.session.identity().list_users(Some(&self.name), Some(&self.domain)).await?;
        Ok(users.iter().any(|user| user.id == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_roles_are_assigned_and_unknown_ones_are_named() {
        let role = |name: &str| Role { id: format!("id-{name}"), name: name.to_owned() };
        let wanted = ["network_admin".to_owned(), "member".to_owned()];
        let known = [role("member"), role("network_admin"), role("admin")];
        assert_eq!(missing_roles(&wanted, &known, &[role("member")]).unwrap(), ["id-network_admin"]);
        assert_eq!(missing_roles(&wanted, &known, &known).unwrap(), [""; 0]);
        let error = missing_roles(&wanted, &[role("member")], &[]).unwrap_err();
        assert!(error.to_string().contains("no role network_admin"), "{error}");
    }

    #[test]
    fn passwords_are_long_and_not_the_same() {
        let passwords = [generate_password().unwrap(), generate_password().unwrap()];
        assert!(passwords.iter().all(|password| password.expose().len() == PASSWORD_LENGTH));
        assert_ne!(passwords[0], passwords[1]);
    }
}
