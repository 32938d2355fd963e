//! The files that say who may log in beside certificates and service accounts: static tokens and OpenID Connect providers.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, anyhow};
use mainstay_server::{
    auth::{
        oidc::{TrustedIssuers, config::AuthenticationConfiguration},
        static_token::StaticTokens,
    },
    settings::Settings,
};

use crate::{cli::ServerOptions, exit::Exit};

/// Reads the files that flags name into the settings. What is wrong in one is refused at start, with flag and field.
pub fn configure(settings: &mut Settings, options: &ServerOptions) -> Result<(), Exit> {
    if let Some(file) = &options.token_auth_file {
        let tokens = read(file).and_then(|text| Ok(StaticTokens::parse(&text)?));
        settings.static_tokens = Arc::new(tokens.map_err(refused("--token-auth-file", file))?);
    }
    if let Some(file) = &options.authentication_config {
        let issuers = read(file).and_then(|text| trusted_issuers(&text, &settings.issuer));
        settings.trusted_issuers = Arc::new(issuers.map_err(refused("--authentication-config", file))?);
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).context("cannot be read")
}

fn refused(flag: &'static str, file: &Path) -> impl FnOnce(anyhow::Error) -> Exit + use<> {
    let file = file.display().to_string();
    move |error| Exit::Refused(error.context(format!("{flag} {file}")))
}

fn trusted_issuers(text: &str, own_issuer: &str) -> anyhow::Result<TrustedIssuers> {
    let value = mainstay_api::decode::yaml(text.as_bytes()).map_err(|error| anyhow!("{error}"))?.value;
    let configuration: AuthenticationConfiguration = serde_json::from_value(value)?;
    Ok(TrustedIssuers::new(configuration, own_issuer)?)
}
