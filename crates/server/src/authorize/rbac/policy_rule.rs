//! PolicyRule: what one rule of a Role or ClusterRole allows, and whether a set of rules covers another.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use serde::{Deserialize, Deserializer, Serialize};

use super::super::{Attributes, RequestTarget, ResourceAttributes};

pub const ALL: &str = "*";

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub api_groups: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_as_empty")]
    pub verbs: Vec<String>,
}

fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl PolicyRule {
    /// Every verb on every resource and every path.
    pub fn full_authority() -> [Self; 2] {
        let all = || vec![ALL.to_owned()];
        [
            Self { api_groups: all(), resources: all(), verbs: all(), ..Self::default() },
            Self { non_resource_urls: all(), verbs: all(), ..Self::default() },
        ]
    }

    pub fn allows(&self, request: &Attributes<'_>) -> bool {
        includes(&self.verbs, request.verb)
            && match &request.target {
                RequestTarget::Resource(resource) => self.allows_resource(resource),
                RequestTarget::Path(path) => self.non_resource_urls.iter().any(|url| url_matches(url, path)),
            }
    }

    fn allows_resource(&self, request: &ResourceAttributes<'_>) -> bool {
        includes(&self.api_groups, &request.group)
            && self.names_resource(&request.resource, request.subresource.as_deref())
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| *name == request.name()))
    }

    /// `pods`, `pods/log`, `*/scale` or `*`.
    fn names_resource(&self, resource: &str, subresource: Option<&str>) -> bool {
        self.resources.iter().any(|named| match (named.split_once('/'), subresource) {
            _ if named == ALL => true,
            (None, None) => named == resource,
            (Some((named, named_sub)), Some(subresource)) => {
                named_sub == subresource && (named == ALL || named == resource)
            }
            _ => false,
        })
    }

    /// The same rights as rules with one verb, one group, one resource and at most one name each, or one verb and one URL.
    fn split(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut split = Vec::new();
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let rule =
                        Self { api_groups: one(group), resources: one(resource), verbs: one(verb), ..Self::default() };
                    if self.resource_names.is_empty() {
                        split.push(rule);
                    } else {
                        let named = self.resource_names.iter();
                        split.extend(named.map(|name| Self { resource_names: one(name), ..rule.clone() }));
                    }
                }
            }
            let urls = self.non_resource_urls.iter();
            split.extend(urls.map(|url| Self { non_resource_urls: one(url), verbs: one(verb), ..Self::default() }));
        }
        split
    }

    /// Whether this rule alone gives all that `wanted`, one rule of a [split](Self::split), gives.
    fn covers_split(&self, wanted: &Self) -> bool {
        let all_of = |own: &[String], wanted: &[String]| wanted.iter().all(|wanted| includes(own, wanted));
        let names = || {
            self.resource_names.is_empty()
                || (!wanted.resource_names.is_empty() && all_of(&self.resource_names, &wanted.resource_names))
        };
        let resources = || wanted.resources.iter().all(|wanted| self.covers_resource(wanted));
        let urls = || {
            let covered = |wanted: &String| self.non_resource_urls.iter().any(|own| url_matches(own, wanted));
            wanted.non_resource_urls.iter().all(covered)
        };
        all_of(&self.verbs, &wanted.verbs)
            && all_of(&self.api_groups, &wanted.api_groups)
            && resources()
            && names()
            && urls()
    }

    fn covers_resource(&self, wanted: &str) -> bool {
        match wanted.split_once('/') {
            Some((_, subresource)) if subresource == ALL => includes(&self.resources, wanted),
            Some((resource, subresource)) => self.names_resource(resource, Some(subresource)),
            None => includes(&self.resources, wanted),
        }
    }
}

fn includes(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == ALL || item == wanted)
}

fn url_matches(url: &str, path: &str) -> bool {
    match url.strip_suffix(ALL) {
        Some(prefix) => path.strip_suffix(ALL).unwrap_or(path).starts_with(prefix),
        None => url == path,
    }
}

/// How many single rights `rules` give: verbs times groups times resources times names, and verbs times URLs.
pub fn count_rights(rules: &[PolicyRule]) -> usize {
    rules.iter().fold(0, |sum, rule| {
        let names = rule.resource_names.len().max(1);
        let resources = rule.api_groups.len().saturating_mul(rule.resources.len()).saturating_mul(names);
        let targets = resources.saturating_add(rule.non_resource_urls.len());
        sum.saturating_add(rule.verbs.len().saturating_mul(targets))
    })
}

/// What of `wanted` none of the `held` rules gives, compact enough to be shown. Takes time and memory for every single right
/// in `wanted`: callers limit [their number](count_rights).
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let split = wanted.iter().flat_map(PolicyRule::split);
    compact(split.filter(|wanted| !held.iter().any(|rule| rule.covers_split(wanted))).collect())
}

/// Rules that differ in their verb alone become one, in the order of their first verb.
fn compact(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut positions = HashMap::<PolicyRule, usize>::new();
    let mut verbs = Vec::<BTreeSet<String>>::new();
    for mut rule in rules {
        let own_verbs = std::mem::take(&mut rule.verbs);
        let position = *positions.entry(rule).or_insert(verbs.len());
        if position == verbs.len() {
            verbs.push(BTreeSet::new());
        }
        verbs[position].extend(own_verbs);
    }
    let mut compact: Vec<(usize, PolicyRule)> =
        positions.into_iter().map(|(rule, position)| (position, rule)).collect();
    compact.sort_by_key(|(position, _)| *position);
    let merged = compact.into_iter().zip(verbs);
    merged.map(|((_, rule), verbs)| PolicyRule { verbs: verbs.into_iter().collect(), ..rule }).collect()
}

/// As upstream's messages show it: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = parts.iter().filter(|(_, items)| !items.is_empty());
        let shown: Vec<String> = shown.map(|(name, items)| format!("{name}:{}", quoted_list(items))).collect();
        write!(f, "{{{}}}", shown.join(", "))
    }
}

/// A list as Go's `%q` prints it.
pub fn quoted_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], names: &[&str], verbs: &[&str]) -> PolicyRule {
        let owned = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        PolicyRule {
            api_groups: owned(groups),
            resources: owned(resources),
            resource_names: owned(names),
            verbs: owned(verbs),
            ..PolicyRule::default()
        }
    }

    fn urls(urls: &[&str], verbs: &[&str]) -> PolicyRule {
        let owned = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        PolicyRule { non_resource_urls: owned(urls), verbs: owned(verbs), ..PolicyRule::default() }
    }

    fn request<'a>(verb: &'a str, resource: &'a str, name: &'a str) -> Attributes<'a> {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.into())),
            None => (resource, None),
        };
        let name = (!name.is_empty()).then(|| name.into());
        let target =
            ResourceAttributes { resource: resource.into(), subresource, name, ..ResourceAttributes::default() };
        Attributes { verb, target: RequestTarget::Resource(target) }
    }

    #[test]
    fn a_rule_allows_what_it_names_and_nothing_else() {
        let pods = rule(&[""], &["pods"], &[], &["get", "list"]);
        assert!(pods.allows(&request("get", "pods", "a")));
        assert!(!pods.allows(&request("delete", "pods", "a")));
        assert!(!pods.allows(&request("get", "pods/log", "a")), "a subresource is named by itself");
        assert!(!pods.allows(&request("get", "secrets", "a")));
        assert!(rule(&[""], &["pods/log"], &[], &["get"]).allows(&request("get", "pods/log", "a")));
        assert!(!rule(&[""], &["pods/log"], &[], &["get"]).allows(&request("get", "pods", "a")));
        assert!(rule(&[""], &["*/scale"], &[], &["*"]).allows(&request("patch", "deployments/scale", "a")));
        assert!(!rule(&[""], &["*/scale"], &[], &["*"]).allows(&request("patch", "deployments", "a")));
        assert!(rule(&["*"], &["*"], &[], &["*"]).allows(&request("patch", "deployments/scale", "a")));
        assert!(!rule(&["apps"], &["*"], &[], &["*"]).allows(&request("get", "pods", "a")));
    }

    #[test]
    fn names_limit_a_rule_to_requests_with_one_of_them() {
        let one = rule(&[""], &["pods"], &["a"], &["get", "list", "create"]);
        assert!(one.allows(&request("get", "pods", "a")));
        assert!(!one.allows(&request("get", "pods", "b")));
        assert!(!one.allows(&request("list", "pods", "")));
        assert!(!one.allows(&request("create", "pods", "")));
    }

    #[test]
    fn urls_match_whole_or_by_prefix() {
        let path = |path| Attributes { verb: "get", target: RequestTarget::Path(path) };
        assert!(urls(&["/healthz"], &["get"]).allows(&path("/healthz")));
        assert!(!urls(&["/healthz"], &["get"]).allows(&path("/healthz/etcd")));
        assert!(urls(&["/healthz/*"], &["get"]).allows(&path("/healthz/etcd")));
        assert!(urls(&["*"], &["get"]).allows(&path("/anything")));
        assert!(!urls(&["/apis/*"], &["post"]).allows(&path("/apis/apps")));
        assert!(!rule(&["*"], &["*"], &[], &["*"]).allows(&path("/metrics")), "resources are no paths");
    }

    #[test]
    fn what_is_missing_is_told_in_as_few_rules_as_possible() {
        let held = [rule(&[""], &["pods"], &[], &["get"])];
        let wanted = [rule(&[""], &["pods", "secrets"], &[], &["get", "delete"])];
        let missing: Vec<String> = missing(&held, &wanted).iter().map(PolicyRule::to_string).collect();
        assert_eq!(
            missing,
            [
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["delete" "get"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#,
            ]
        );
    }

    #[test]
    fn rights_are_counted_without_being_listed() {
        let names: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
        let absurd = PolicyRule {
            api_groups: names.clone(),
            resources: names.clone(),
            resource_names: names.clone(),
            verbs: names,
            ..PolicyRule::default()
        };
        assert_eq!(count_rights(&[absurd.clone(), absurd]), usize::MAX);
        let pods = rule(&["", "apps"], &["pods"], &[], &["get", "list", "watch"]);
        assert_eq!(count_rights(&[pods, urls(&["/healthz"], &["get"])]), 7);
    }

    #[test]
    fn a_right_for_some_names_does_not_cover_a_right_for_all() {
        let named = rule(&[""], &["secrets"], &["a"], &["get"]);
        let all = rule(&[""], &["secrets"], &[], &["get"]);
        assert!(!missing(std::slice::from_ref(&named), std::slice::from_ref(&all)).is_empty());
        assert!(missing(std::slice::from_ref(&all), std::slice::from_ref(&named)).is_empty());
    }

    #[test]
    fn wildcards_are_covered_by_wildcards_alone() {
        let every_verb = rule(&[""], &["pods"], &[], &["get", "list", "watch", "create", "update", "patch", "delete"]);
        let wildcard = rule(&[""], &["pods"], &[], &["*"]);
        assert!(!missing(&[every_verb], &[wildcard]).is_empty());
        let scale_of_all = rule(&["*"], &["*/scale"], &[], &["get"]);
        let scale_of_one = rule(&["apps"], &["deployments/scale"], &[], &["get"]);
        assert!(missing(std::slice::from_ref(&scale_of_all), std::slice::from_ref(&scale_of_one)).is_empty());
        assert!(!missing(&[scale_of_one], &[scale_of_all]).is_empty());
        assert!(!missing(&[urls(&["/apis/apps"], &["get"])], &[urls(&["/apis/*"], &["get"])]).is_empty());
        assert!(missing(&[urls(&["/apis*"], &["get"])], &[urls(&["/apis/*"], &["get"])]).is_empty());
        assert!(missing(&PolicyRule::full_authority(), &PolicyRule::full_authority()).is_empty());
    }

    proptest::proptest! {
        /// Whoever holds rules that cover others may do whatever these allow.
        #[test]
        fn covering_rules_allow_all_that_the_covered_ones_allow(
            held in proptest::collection::vec(any_rule(), 0..4),
            wanted in any_rule(),
            verb in text(), group in text(), resource in text(), subresource in proptest::option::of(text()), name in text(),
        ) {
            let target = ResourceAttributes {
                group: group.as_str().into(),
                resource: resource.as_str().into(),
                subresource: subresource.map(Into::into),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            };
            let request = Attributes { verb: &verb, target: RequestTarget::Resource(target) };
            if missing(&held, std::slice::from_ref(&wanted)).is_empty() && wanted.allows(&request) {
                proptest::prop_assert!(held.iter().any(|rule| rule.allows(&request)));
            }
        }
    }

    fn text() -> impl proptest::strategy::Strategy<Value = String> {
        proptest::sample::select(vec!["a".to_owned(), "b".to_owned()])
    }

    fn any_rule() -> impl proptest::strategy::Strategy<Value = PolicyRule> {
        use proptest::{collection::vec, sample::select, strategy::Strategy};
        let plain = || vec(select(vec!["a", "b", "*"]), 1..3);
        let resources = vec(select(vec!["a", "b", "*", "a/a", "a/b", "*/a", "b/b"]), 1..3);
        let names = vec(select(vec!["a", "b"]), 0..2);
        (plain(), resources, names, plain()).prop_map(|(g, r, n, v)| rule(&g, &r, &n, &v))
    }
}
