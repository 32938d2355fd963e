//! The configuration of clouds: `clouds.yaml` as all of OpenStack's clients read it, from a file or from a Secret.
//!
//! Understood of each cloud: `auth` (password, application credential or token), `auth_type`, `region_name`, `interface`, `cacert`. Everything else is
//! ignored, as other clients ignore what they do not know, but `verify: false` is refused: a password is not sent to whoever answers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::SecretText;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("there is no clouds.yaml in {}", .looked_in.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoFile { looked_in: Vec<PathBuf> },
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{origin} is not a clouds.yaml: {reason}")]
    Syntax { origin: String, reason: String },
    #[error("{origin} has no cloud {name:?}; it has {known}")]
    NoSuchCloud { origin: String, name: String, known: String },
    #[error("{origin} has several clouds, {known}: name one of them")]
    SeveralClouds { origin: String, known: String },
    #[error("cloud {cloud:?}: clouds.{cloud}.{field} {problem}")]
    Field { cloud: String, field: &'static str, problem: &'static str },
    #[error("cloud {cloud:?}: the authorities of clouds.{cloud}.cacert, {}, are not usable", path.display())]
    Authorities {
        cloud: String,
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A clouds.yaml, read but not judged: an entry that is wrong is so when it is used.
#[derive(Clone, Debug)]
pub struct CloudsFile {
    /// Where it came from, for errors.
    origin: String,
    clouds: BTreeMap<String, RawCloud>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RawFile {
    #[serde(default)]
    clouds: BTreeMap<String, RawCloud>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RawCloud {
    #[serde(default)]
    auth: RawAuth,
    auth_type: Option<String>,
    region_name: Option<String>,
    interface: Option<String>,
    endpoint_type: Option<String>,
    cacert: Option<PathBuf>,
    verify: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RawAuth {
    auth_url: Option<String>,
    username: Option<String>,
    user_id: Option<String>,
    password: Option<SecretText>,
    user_domain_name: Option<String>,
    user_domain_id: Option<String>,
    project_name: Option<String>,
    project_id: Option<String>,
    project_domain_name: Option<String>,
    project_domain_id: Option<String>,
    domain_name: Option<String>,
    domain_id: Option<String>,
    application_credential_id: Option<String>,
    application_credential_name: Option<String>,
    application_credential_secret: Option<SecretText>,
    token: Option<SecretText>,
}

/// A name, or an id, which wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identifier {
    Id(String),
    Name(String),
}

impl Identifier {
    fn new(id: &Option<String>, name: &Option<String>) -> Option<Self> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        given(id).map(Self::Id).or_else(|| given(name).map(Self::Name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Password {
        user: Identifier,
        user_domain: Identifier,
        password: SecretText,
    },
    /// By id, or by name together with the user it belongs to.
    ApplicationCredential {
        credential: Identifier,
        user: Option<(Identifier, Identifier)>,
        secret: SecretText,
    },
    Token {
        token: SecretText,
    },
}

/// What a token may do: something in a project, something in a domain, or what its credential says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Project { project: Identifier, domain: Identifier },
    Domain(Identifier),
    OfCredential,
}

/// How to log in to one cloud.
#[derive(Clone, Debug)]
pub struct CloudConfig {
    pub name: String,
    /// Without a slash at the end, with `/v3`.
    pub auth_url: String,
    pub credential: Credential,
    pub scope: Scope,
    pub region: Option<String>,
    /// `public`, `internal` or `admin`.
    pub interface: String,
    /// The authorities of its services, as PEM; the machine's own without.
    pub authorities: Option<String>,
}

impl CloudConfig {
    /// The same login in another project of the cloud; nothing if the credential is of one project alone.
    pub fn in_project(&self, project: &str) -> Option<Self> {
        if self.scope == Scope::OfCredential {
            return None;
        }
        // An id is unique in the cloud: the domain says nothing more.
        let domain = Identifier::Id("default".to_owned());
        Some(Self { scope: Scope::Project { project: Identifier::Id(project.to_owned()), domain }, ..self.clone() })
    }
}

impl CloudsFile {
    /// Reads the file, or the first that the search path has: the current directory, the user's configuration, `/etc/openstack`.
    pub fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let looked_in = match path {
            Some(path) => vec![path.to_owned()],
            None => search_path(
                std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from),
                std::env::var_os("HOME").map(PathBuf::from),
            ),
        };
        for path in &looked_in {
            match std::fs::read_to_string(path) {
                Ok(text) => return Self::parse(&path.display().to_string(), &text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(ConfigError::Read { path: path.clone(), source }),
            }
        }
        Err(ConfigError::NoFile { looked_in })
    }

    /// The text of a clouds.yaml, of a file or a Secret; `origin` says which.
    pub fn parse(origin: &str, text: &str) -> Result<Self, ConfigError> {
        let origin = origin.to_owned();
        match serde_saphyr::from_str::<RawFile>(text) {
            Ok(file) => Ok(Self { origin, clouds: file.clouds }),
            // Its first line alone: what follows shows the text, and with it passwords.
            Err(error) => {
                let reason = error.to_string().lines().next().unwrap_or_default().to_owned();
                Err(ConfigError::Syntax { origin, reason })
            }
        }
    }

    /// The text of a Secret, which others than the operator may write: it names no files of the server's machine. `elsewhere` is a file of the machine that the
    /// text is for: it is not read here.
    pub fn parse_secret(origin: &str, text: &str, elsewhere: &Path) -> Result<Self, ConfigError> {
        let mut file = Self::parse(origin, text)?;
        for cloud in file.clouds.values_mut() {
            cloud.cacert.take_if(|path| path.as_path() == elsewhere);
        }
        match file.clouds.iter().find(|(_, cloud)| cloud.cacert.is_some()) {
            Some((name, _)) => {
                let problem = "may not be in a Secret: files of the server are not read for it";
                Err(ConfigError::Field { cloud: name.clone(), field: "cacert", problem })
            }
            None => Ok(file),
        }
    }

    /// The names of its clouds, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.clouds.keys().map(String::as_str)
    }

    /// The cloud of that name; without a name, the only one there is.
    pub fn cloud(&self, name: Option<&str>) -> Result<CloudConfig, ConfigError> {
        let known = || self.names().collect::<Vec<_>>().join(", ");
        let origin = || self.origin.clone();
        let name = match name {
            Some(name) => name,
            None if self.clouds.len() == 1 => self.names().next().unwrap_or_default(),
            None if self.clouds.is_empty() => "",
            None => return Err(ConfigError::SeveralClouds { origin: origin(), known: known() }),
        };
        let raw = self.clouds.get(name).ok_or_else(|| {
            let known = if self.clouds.is_empty() { "none".to_owned() } else { known() };
            ConfigError::NoSuchCloud { origin: origin(), name: name.to_owned(), known }
        })?;
        judge(name, raw)
    }
}

fn search_path(config_home: Option<PathBuf>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let user = config_home.or_else(|| home.map(|home| home.join(".config"))).map(|config| config.join("openstack"));
    let folders = [Some(PathBuf::from(".")), user, Some(PathBuf::from("/etc/openstack"))];
    folders.into_iter().flatten().flat_map(|folder| [folder.join("clouds.yaml"), folder.join("clouds.yml")]).collect()
}

fn judge(name: &str, raw: &RawCloud) -> Result<CloudConfig, ConfigError> {
    let wrong = |field, problem| ConfigError::Field { cloud: name.to_owned(), field, problem };
    let auth = &raw.auth;
    if raw.verify == Some(false) {
        return Err(wrong("verify", "may not be false: name the authority of the cloud in cacert"));
    }
    let url = auth.auth_url.as_deref().map(|url| url.trim_end_matches('/')).filter(|url| !url.is_empty());
    let url = url.ok_or_else(|| wrong("auth.auth_url", "is missing"))?;
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong("auth.auth_url", "must begin with http:// or https://"));
    }
    let auth_url = if url.ends_with("/v3") { url.to_owned() } else { format!("{}/v3", url.trim_end_matches("/v2.0")) };
    let default_domain = || Identifier::Id("default".to_owned());
    let user_domain = Identifier::new(&auth.user_domain_id, &auth.user_domain_name)
        .or_else(|| Identifier::new(&auth.domain_id, &auth.domain_name));
    let user = Identifier::new(&auth.user_id, &auth.username);
    let kind = raw.auth_type.as_deref().unwrap_or_else(|| {
        if auth.application_credential_secret.is_some() {
            "v3applicationcredential"
        } else if auth.token.is_some() {
            "v3token"
        } else {
            "password"
        }
    });
    let credential = match kind {
        "password" | "v3password" => Credential::Password {
            user: user.ok_or_else(|| wrong("auth.username", "is missing"))?,
            user_domain: user_domain.unwrap_or_else(default_domain),
            password: auth.password.clone().ok_or_else(|| wrong("auth.password", "is missing"))?,
        },
        "v3applicationcredential" => {
            let credential = Identifier::new(&auth.application_credential_id, &auth.application_credential_name)
                .ok_or_else(|| wrong("auth.application_credential_id", "is missing"))?;
            let user = match &credential {
                Identifier::Id(_) => None,
                Identifier::Name(_) => {
                    let user = user.ok_or_else(|| {
                        wrong("auth.username", "is missing: an application credential is named together with its user")
                    })?;
                    Some((user, user_domain.unwrap_or_else(default_domain)))
                }
            };
            let secret = auth.application_credential_secret.clone();
            let secret = secret.ok_or_else(|| wrong("auth.application_credential_secret", "is missing"))?;
            Credential::ApplicationCredential { credential, user, secret }
        }
        "token" | "v3token" => {
            Credential::Token { token: auth.token.clone().ok_or_else(|| wrong("auth.token", "is missing"))? }
        }
        _ => return Err(wrong("auth_type", "is neither password, v3applicationcredential nor v3token")),
    };
    let project = Identifier::new(&auth.project_id, &auth.project_name);
    let scope = match (&credential, project) {
        (Credential::ApplicationCredential { .. }, _) => Scope::OfCredential,
        (_, Some(project)) => {
            let domain = Identifier::new(&auth.project_domain_id, &auth.project_domain_name)
                .or_else(|| Identifier::new(&auth.domain_id, &auth.domain_name))
                .unwrap_or_else(default_domain);
            Scope::Project { project, domain }
        }
        (_, None) => match Identifier::new(&auth.domain_id, &auth.domain_name) {
            Some(domain) => Scope::Domain(domain),
            None => return Err(wrong("auth.project_name", "is missing")),
        },
    };
    let interface = raw.interface.as_deref().or(raw.endpoint_type.as_deref()).unwrap_or("public");
    let interface = interface.trim_end_matches("URL");
    if !["public", "internal", "admin"].contains(&interface) {
        return Err(wrong("interface", "is neither public, internal nor admin"));
    }
    let authorities = raw.cacert.as_ref().map(|path| {
        std::fs::read_to_string(path).map_err(|source| ConfigError::Authorities {
            cloud: name.to_owned(),
            path: path.clone(),
            source: source.into(),
        })
    });
    Ok(CloudConfig {
        name: name.to_owned(),
        auth_url,
        credential,
        scope,
        region: raw.region_name.clone().filter(|region| !region.is_empty()),
        interface: interface.to_owned(),
        authorities: authorities.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloud(entry: &str) -> Result<CloudConfig, ConfigError> {
        let entry: String = entry.lines().map(|line| format!("    {line}\n")).collect();
        CloudsFile::parse("test", &format!("clouds:\n  c:\n{entry}"))?.cloud(Some("c"))
    }

    fn problem(entry: &str) -> String {
        cloud(entry).unwrap_err().to_string()
    }

    #[test]
    fn a_password_with_names_is_understood() {
        let config = cloud(
            "region_name: r\ninterface: internalURL\nauth:\n  auth_url: http://k:5000/\n  username: u\n  password: p\n  \
             project_name: x\n  user_domain_name: D\n  project_domain_id: d",
        )
        .unwrap();
        assert_eq!(config.auth_url, "http://k:5000/v3");
        assert_eq!((config.region.as_deref(), config.interface.as_str()), (Some("r"), "internal"));
        let Credential::Password { user, user_domain, password } = &config.credential else { panic!("a password") };
        assert_eq!((user, user_domain), (&Identifier::Name("u".into()), &Identifier::Name("D".into())));
        assert_eq!(password.expose(), "p");
        let domain = Identifier::Id("d".into());
        assert_eq!(config.scope, Scope::Project { project: Identifier::Name("x".into()), domain });
        assert!(!format!("{config:?}").contains("\"p\""), "the password is not shown");
    }

    #[test]
    fn a_secret_names_no_files_of_the_server() {
        let text = |cacert: &str| {
            format!("clouds: {{c: {{auth: {{auth_url: 'https://k', token: t, project_id: p}}{cacert}}}}}")
        };
        let elsewhere = Path::new("/etc/kluster/cloud/cacert.pem");
        assert!(CloudsFile::parse_secret("s", &text(""), elsewhere).unwrap().cloud(None).is_ok());
        // Read to its end it would fill the memory.
        let error = CloudsFile::parse_secret("s", &text(", cacert: /dev/zero"), elsewhere).unwrap_err().to_string();
        assert!(error.contains("clouds.c.cacert may not be in a Secret"), "{error}");
        let of_pod = CloudsFile::parse_secret("s", &text(", cacert: /etc/kluster/cloud/cacert.pem"), elsewhere);
        assert_eq!(of_pod.unwrap().cloud(None).unwrap().authorities, None, "a file of the pod is not read here");
    }

    #[test]
    fn application_credentials_and_tokens_are_understood() {
        let config = cloud(
            "auth:\n  auth_url: https://k/v3\n  application_credential_id: i\n  application_credential_secret: s",
        );
        assert!(matches!(config.unwrap().scope, Scope::OfCredential));
        let config = cloud("auth_type: v3token\nauth:\n  auth_url: https://k/v3\n  token: t\n  project_id: p").unwrap();
        assert!(matches!(config.credential, Credential::Token { .. }));
    }

    #[test]
    fn a_login_can_be_of_another_project_unless_its_credential_says_which() {
        let config = cloud("auth: {auth_url: 'http://k', username: u, password: p, project_name: x}").unwrap();
        let Scope::Project { project, .. } = config.in_project("y").unwrap().scope else { panic!("a project") };
        assert_eq!(project, Identifier::Id("y".into()));
        let credential = "auth: {auth_url: 'http://k', application_credential_id: i, application_credential_secret: s}";
        assert!(cloud(credential).unwrap().in_project("y").is_none());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        assert!(problem("auth: {username: u}").contains("clouds.c.auth.auth_url is missing"));
        assert!(problem("auth: {auth_url: 'http://k'}").contains("clouds.c.auth.username is missing"));
        let entry = "auth: {auth_url: 'http://k', username: u, password: p}";
        assert!(problem(entry).contains("clouds.c.auth.project_name is missing"));
        assert!(problem(&format!("verify: false\n{entry}")).contains("clouds.c.verify may not be false"));
        assert!(problem("auth_type: saml\nauth: {auth_url: 'http://k'}").contains("auth_type"));
        let named = "auth: {auth_url: 'http://k', application_credential_name: n, application_credential_secret: s}";
        assert!(problem(named).contains("auth.username"));
        let no_file =
            problem("cacert: /nonexistent\nauth: {auth_url: 'https://k', username: u, password: p, project_id: x}");
        assert!(no_file.contains("clouds.c.cacert, /nonexistent"), "{no_file}");
    }

    #[test]
    fn a_cloud_is_found_by_name_or_as_the_only_one() {
        let entry = "auth: {auth_url: 'http://k', username: u, password: p, project_id: x}";
        let two = CloudsFile::parse("f", &format!("clouds:\n  a: {{{entry}}}\n  b: {{{entry}}}")).unwrap();
        assert_eq!(two.cloud(Some("b")).unwrap().name, "b");
        assert_eq!(two.cloud(Some("z")).unwrap_err().to_string(), "f has no cloud \"z\"; it has a, b");
        assert!(two.cloud(None).unwrap_err().to_string().contains("several clouds, a, b"));
        let one = CloudsFile::parse("f", &format!("clouds:\n  a: {{{entry}}}")).unwrap();
        assert_eq!(one.cloud(None).unwrap().name, "a");
        assert!(CloudsFile::parse("f", "").is_err() || CloudsFile::parse("f", "").unwrap().cloud(None).is_err());
    }

    #[test]
    fn a_file_that_is_no_yaml_is_refused_without_showing_it() {
        let error = CloudsFile::parse("f", "clouds:\n  a:\n    auth: {password: [hunter2").unwrap_err().to_string();
        assert!(error.starts_with("f is not a clouds.yaml") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn the_search_path_is_that_of_openstack_clients() {
        let path = search_path(None, Some("/home/u".into()));
        let expected = ["./clouds.yaml", "./clouds.yml", "/home/u/.config/openstack/clouds.yaml"].map(PathBuf::from);
        assert_eq!(path[..3], expected);
        assert_eq!(path[4], PathBuf::from("/etc/openstack/clouds.yaml"));
    }
}
