//! Which AppArmor profile a container gets. One that was asked for is applied or the container is refused.

use std::{collections::BTreeSet, fs};

use crate::spec::{AppArmor, Security};

/// The default of this runtime: applied where an administrator has loaded a profile of this name.
pub const DEFAULT_PROFILE: &str = "mainstay-default";

const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// What the machine has of AppArmor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppArmorSupport {
    pub enabled: bool,
    pub profiles: BTreeSet<String>,
}

impl AppArmorSupport {
    pub fn read() -> Self {
        let enabled = fs::read_to_string(ENABLED).is_ok_and(|text| text.starts_with('Y'));
        let loaded = if enabled { fs::read_to_string(PROFILES).unwrap_or_default() } else { String::new() };
        Self { enabled, profiles: parse_profiles(&loaded) }
    }
}

/// Lines of `name (mode)`; the name may hold blanks and a namespace.
fn parse_profiles(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0.to_owned())).collect()
}

/// The profile to apply; none where nothing is enforced.
pub fn profile(security: &Security, host: &AppArmorSupport) -> Result<Option<String>, String> {
    let loaded = |name: &str| match (host.enabled, host.profiles.contains(name)) {
        (false, _) => Err("Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned()),
        (true, false) => Err(format!("Cannot enforce AppArmor: profile {name:?} is not loaded")),
        (true, true) => Ok(Some(name.to_owned())),
    };
    match &security.apparmor {
        AppArmor::Unconfined => Ok(host.enabled.then(|| "unconfined".to_owned())),
        AppArmor::Localhost(name) => loaded(name),
        AppArmor::RuntimeDefault => loaded(DEFAULT_PROFILE),
        AppArmor::Unspecified if security.privileged => Ok(None),
        AppArmor::Unspecified => Ok(loaded(DEFAULT_PROFILE).ok().flatten()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(apparmor: AppArmor, host: &AppArmorSupport) -> Result<Option<String>, String> {
        profile(&Security { apparmor, ..Security::default() }, host)
    }

    #[test]
    fn without_apparmor_only_what_asks_for_it_is_refused() {
        let none = AppArmorSupport::default();
        assert_eq!(ask(AppArmor::Unspecified, &none), Ok(None));
        assert_eq!(ask(AppArmor::Unconfined, &none), Ok(None));
        let refused = Err("Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned());
        assert_eq!(ask(AppArmor::RuntimeDefault, &none), refused);
        assert_eq!(ask(AppArmor::Localhost("x".into()), &none), refused);
    }

    #[test]
    fn a_profile_must_be_loaded() {
        let profiles = parse_profiles("/usr/bin/man (enforce)\nns://my profile (complain)\nbroken\n");
        let mut host = AppArmorSupport { enabled: true, profiles };
        assert_eq!(ask(AppArmor::Localhost("ns://my profile".into()), &host), Ok(Some("ns://my profile".into())));
        assert!(ask(AppArmor::Localhost("other".into()), &host).unwrap_err().contains("\"other\" is not loaded"));
        assert!(ask(AppArmor::RuntimeDefault, &host).is_err());
        assert_eq!(ask(AppArmor::Unspecified, &host), Ok(None));
        host.profiles.insert(DEFAULT_PROFILE.into());
        assert_eq!(ask(AppArmor::Unspecified, &host), Ok(Some(DEFAULT_PROFILE.into())));
        assert_eq!(ask(AppArmor::Unconfined, &host), Ok(Some("unconfined".into())));
    }
}
