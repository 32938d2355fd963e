//! Request paths, parsed: group, version, resource, namespace, name, subresource.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

#[derive(Debug, PartialEq, Eq)]
pub enum Route<'a> {
    Resource(ResourceRoute<'a>),
    /// `/api` or `/apis`.
    Groups {
        legacy: bool,
    },
    /// `/apis/<group>`.
    Group(Cow<'a, str>),
    /// `/api/<version>` or `/apis/<group>/<version>`.
    GroupVersion {
        group: Cow<'a, str>,
        version: Cow<'a, str>,
    },
    /// Anything else, such as `/version` or `/livez/ping`.
    Other,
}

/// `/api/v1/namespaces/<namespace>/<plural>/<name>/<subresource>` and its shorter forms.
#[derive(Debug, PartialEq, Eq)]
pub struct ResourceRoute<'a> {
    pub group: Cow<'a, str>,
    pub version: Cow<'a, str>,
    pub plural: Cow<'a, str>,
    pub namespace: Option<Cow<'a, str>>,
    pub name: Option<Cow<'a, str>>,
    pub subresource: Option<Cow<'a, str>>,
    /// The old `/watch/` form of the path.
    pub watch: bool,
    /// What follows the subresource `proxy`, as it came, with its slash.
    pub rest: &'a str,
}

/// Subresources of namespaces themselves, as opposed to resources inside one.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl<'a> Route<'a> {
    /// As [`Route::parse`], for what another server serves: what follows the subresource is its business.
    pub fn parse_prefix(path: &'a str) -> Option<Self> {
        let segments = if path.split('/').filter(|s| !s.is_empty()).nth(3) == Some("namespaces") { 8 } else { 6 };
        let rest = skip_segments(path, segments);
        Self::parse(&path[..path.len() - rest.len()])
    }

    /// `None` if the path is not valid UTF-8 once decoded.
    pub fn parse(path: &'a str) -> Option<Self> {
        let mut segments = path.split('/').filter(|s| !s.is_empty());
        let (group, legacy) = match segments.next() {
            Some("api") => (Cow::Borrowed(""), true),
            Some("apis") => match segments.next() {
                None => return Some(Self::Groups { legacy: false }),
                Some(group) => (decode(group)?, false),
            },
            _ => return Some(Self::Other),
        };
        let Some(version) = segments.next() else {
            return Some(if legacy { Self::Groups { legacy } } else { Self::Group(group) });
        };
        let version = decode(version)?;
        let mut rest = segments.map(decode).collect::<Option<Vec<_>>>()?.into_iter().peekable();
        let watch = rest.next_if(|s| s == "watch").is_some();
        let Some(first) = rest.next() else {
            return Some(if watch { Self::Other } else { Self::GroupVersion { group, version } });
        };
        let mut route = ResourceRoute {
            group,
            version,
            plural: first,
            namespace: None,
            name: None,
            subresource: None,
            watch,
            rest: "",
        };
        if route.plural == "namespaces" && route.group.is_empty() {
            route.name = rest.next();
            match rest.next() {
                None => {}
                Some(sub) if NAMESPACE_SUBRESOURCES.contains(&&*sub) => route.subresource = Some(sub),
                Some(plural) => {
                    route.namespace = route.name.take();
                    route.plural = plural;
                }
            }
        } else if route.plural == "namespaces" {
            route.namespace = rest.next();
            route.plural = rest.next()?;
        }
        if route.name.is_none() {
            route.name = rest.next();
            route.subresource = rest.next();
        }
        if route.subresource.as_deref() == Some("proxy") {
            let before =
                if legacy { 2 } else { 3 } + usize::from(watch) + if route.namespace.is_some() { 2 } else { 0 };
            route.rest = skip_segments(path, before + 3);
            return Some(Self::Resource(route));
        }
        match rest.next() {
            None => Some(Self::Resource(route)),
            Some(_) => Some(Self::Other),
        }
    }
}

/// What follows the first so many segments of a path, from the slash on.
fn skip_segments(path: &str, segments: usize) -> &str {
    let mut rest = path;
    for _ in 0..segments {
        rest = rest.trim_start_matches('/');
        rest = &rest[rest.find('/').unwrap_or(rest.len())..];
    }
    rest
}

fn decode(segment: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(segment).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourceRoute<'_> {
        match Route::parse(path) {
            Some(Route::Resource(route)) => route,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_resource_path_names_group_namespace_name_and_subresource() {
        let route = resource("/apis/apps/v1/namespaces/shop/deployments/web/scale");
        assert_eq!((&*route.group, &*route.version, &*route.plural), ("apps", "v1", "deployments"));
        assert_eq!(route.namespace.as_deref(), Some("shop"));
        assert_eq!(route.name.as_deref(), Some("web"));
        assert_eq!(route.subresource.as_deref(), Some("scale"));
    }

    #[test]
    fn namespaces_are_a_resource_and_a_scope() {
        let itself = resource("/api/v1/namespaces/shop");
        assert_eq!(
            (&*itself.plural, itself.name.as_deref(), itself.namespace.as_deref()),
            ("namespaces", Some("shop"), None)
        );
        let status = resource("/api/v1/namespaces/shop/status");
        assert_eq!((&*status.plural, status.subresource.as_deref()), ("namespaces", Some("status")));
        let pods = resource("/api/v1/namespaces/shop/pods");
        assert_eq!((&*pods.plural, pods.name.as_deref(), pods.namespace.as_deref()), ("pods", None, Some("shop")));
    }

    #[test]
    fn cluster_wide_and_old_watch_paths_are_understood() {
        assert_eq!(resource("/api/v1/pods").namespace, None);
        assert!(resource("/api/v1/watch/namespaces/shop/pods").watch);
        assert_eq!(resource("/api/v1/nodes/a%2Fb").name.as_deref(), Some("a/b"));
    }

    #[test]
    fn what_is_proxied_keeps_its_path_as_it_came() {
        let route = resource("/api/v1/namespaces/shop/pods/https:web:8443/proxy/a%2Fb//c/");
        assert_eq!((route.name.as_deref(), route.rest), (Some("https:web:8443"), "/a%2Fb//c/"));
        assert_eq!(resource("/api/v1/nodes/a/proxy").rest, "");
        assert_eq!(resource("/api/v1/nodes/a/proxy/").rest, "/");
        assert_eq!(resource("/api/v1/nodes/a/proxy/stats/summary").rest, "/stats/summary");
    }

    #[test]
    fn what_another_server_serves_is_a_resource_however_long_its_path() {
        for path in ["/apis/g/v1/namespaces/n/foos/a/sub/and/more", "/apis/g/v1/foos/a/sub/and/more"] {
            let Some(Route::Resource(route)) = Route::parse_prefix(path) else { panic!("{path}") };
            assert_eq!((route.name.as_deref(), route.subresource.as_deref()), (Some("a"), Some("sub")), "{path}");
        }
    }

    #[test]
    fn discovery_paths_are_not_resources() {
        assert_eq!(Route::parse("/api"), Some(Route::Groups { legacy: true }));
        assert_eq!(Route::parse("/apis/"), Some(Route::Groups { legacy: false }));
        assert_eq!(Route::parse("/apis/apps"), Some(Route::Group("apps".into())));
        assert_eq!(
            Route::parse("/apis/apps/v1"),
            Some(Route::GroupVersion { group: "apps".into(), version: "v1".into() })
        );
        assert_eq!(Route::parse("/livez/ping"), Some(Route::Other));
        assert_eq!(Route::parse("/api/v1/pods/a/b/c/d"), Some(Route::Other));
    }
}
