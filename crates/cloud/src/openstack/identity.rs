//! Keystone: users, projects and roles, and the validation of other people's tokens.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{CloudError, SecretText, Service, Session, session::Request};

const SERVICE: Service = Service::Identity;

#[derive(Clone, Debug)]
pub struct Identity(Session);

impl Session {
    pub fn identity(&self) -> Identity {
        Identity(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    pub id: String,
    pub name: String,
    pub domain_id: String,
    pub description: String,
    pub default_project_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Project {
    pub id: String,
    pub name: String,
    pub domain_id: String,
    pub description: String,
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Role {
    pub id: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Domain {
    pub id: String,
    pub name: String,
}

/// What a token says of whoever shows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenInfo {
    pub user: TokenUser,
    pub project: Option<TokenProject>,
    pub roles: Vec<Role>,
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenUser {
    pub id: String,
    pub name: String,
    pub domain: Domain,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenProject {
    pub id: String,
    pub name: String,
    pub domain: Domain,
}

/// A user to be created.
#[derive(Clone, Debug)]
pub struct NewUser {
    pub name: String,
    pub domain: String,
    pub password: SecretText,
    /// Holds the tag of the ledger.
    pub description: String,
    pub default_project: Option<String>,
}

impl Identity {
    /// What somebody's token says; nothing if it is not valid.
    pub async fn validate_token(&self, token: &SecretText) -> Result<Option<TokenInfo>, CloudError> {
        #[derive(Deserialize)]
        struct Answer {
            token: TokenInfo,
        }
        let request = Request::get(SERVICE, "validate token", "/auth/tokens").header("X-Subject-Token", token.expose());
        Ok(self.0.call_optional::<Answer>(request).await?.map(|answer| answer.token))
    }

    pub async fn list_users(&self, name: Option<&str>, domain: Option<&str>) -> Result<Vec<User>, CloudError> {
        let mut request = Request::get(SERVICE, "list users", "/users");
        if let Some(name) = name {
            request = request.query("name", name);
        }
        if let Some(domain) = domain {
            request = request.query("domain_id", domain);
        }
        self.0.list(request, "users").await
    }

    /// Creates a user. Keystone refuses a second one of the name in a domain (409).
    pub async fn create_user(&self, user: &NewUser) -> Result<User, CloudError> {
        #[derive(Deserialize)]
        struct One {
            user: User,
        }
        let mut body = json!({"user": {
            "name": user.name, "domain_id": user.domain, "password": user.password.expose(), "description": user.description,
        }});
        if let Some(project) = &user.default_project {
            body["user"]["default_project_id"] = json!(project);
        }
        Ok(self.0.call::<One>(Request::post(SERVICE, "create user", "/users", body)).await?.user)
    }

    pub async fn set_user_password(&self, id: &str, password: &SecretText) -> Result<(), CloudError> {
        let body = json!({"user": {"password": password.expose()}});
        let request = Request::put(SERVICE, "set user password", format!("/users/{id}"), body);
        self.0.call_without_answer(Request { method: reqwest::Method::PATCH, ..request }).await
    }

    pub async fn delete_user(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete user", format!("/users/{id}"))).await
    }

    pub async fn list_domains(&self, name: Option<&str>) -> Result<Vec<Domain>, CloudError> {
        let mut request = Request::get(SERVICE, "list domains", "/domains");
        if let Some(name) = name {
            request = request.query("name", name);
        }
        self.0.list(request, "domains").await
    }

    pub async fn create_domain(&self, name: &str) -> Result<Domain, CloudError> {
        #[derive(Deserialize)]
        struct One {
            domain: Domain,
        }
        let request = Request::post(SERVICE, "create domain", "/domains", json!({"domain": {"name": name}}));
        Ok(self.0.call::<One>(request).await?.domain)
    }

    pub async fn list_projects(&self, name: Option<&str>) -> Result<Vec<Project>, CloudError> {
        let mut request = Request::get(SERVICE, "list projects", "/projects");
        if let Some(name) = name {
            request = request.query("name", name);
        }
        self.0.list(request, "projects").await
    }

    pub async fn show_project(&self, id: &str) -> Result<Option<Project>, CloudError> {
        #[derive(Deserialize)]
        struct One {
            project: Project,
        }
        let request = Request::get(SERVICE, "show project", format!("/projects/{id}"));
        Ok(self.0.call_optional::<One>(request).await?.map(|found| found.project))
    }

    pub async fn create_project(&self, name: &str, domain: &str) -> Result<Project, CloudError> {
        #[derive(Deserialize)]
        struct One {
            project: Project,
        }
        let body = json!({"project": {"name": name, "domain_id": domain}});
        Ok(self.0.call::<One>(Request::post(SERVICE, "create project", "/projects", body)).await?.project)
    }

    pub async fn delete_project(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete project", format!("/projects/{id}"))).await
    }

    pub async fn list_roles(&self) -> Result<Vec<Role>, CloudError> {
        self.0.list(Request::get(SERVICE, "list roles", "/roles"), "roles").await
    }

    /// Creates a role. Keystone refuses a second one of the name (409).
    pub async fn create_role(&self, name: &str) -> Result<Role, CloudError> {
        #[derive(Deserialize)]
        struct One {
            role: Role,
        }
        let request = Request::post(SERVICE, "create role", "/roles", json!({"role": {"name": name}}));
        Ok(self.0.call::<One>(request).await?.role)
    }

    pub async fn list_user_roles(&self, project: &str, user: &str) -> Result<Vec<Role>, CloudError> {
        let path = format!("/projects/{project}/users/{user}/roles");
        self.0.list(Request::get(SERVICE, "list roles of user", path), "roles").await
    }

    pub async fn assign_role(&self, project: &str, user: &str, role: &str) -> Result<(), CloudError> {
        let path = format!("/projects/{project}/users/{user}/roles/{role}");
        let request = Request::put(SERVICE, "assign role", path, serde_json::Value::Null);
        self.0.call_without_answer(Request { body: None, ..request }).await
    }

    pub async fn revoke_role(&self, project: &str, user: &str, role: &str) -> Result<bool, CloudError> {
        let path = format!("/projects/{project}/users/{user}/roles/{role}");
        self.0.call_delete(Request::delete(SERVICE, "revoke role", path)).await
    }
}
