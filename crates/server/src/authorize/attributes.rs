//! The attributes of a request that authorization rules look at: verb, group, resource, name.

use std::borrow::Cow;

use http::Method;
use mainstay_api::selector::{Fields, Labels, Operator, Relation};

use crate::http::{
    query::Query,
    route::{ResourceRoute, Route},
};

#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub target: RequestTarget<'a>,
}

#[derive(Clone, Debug)]
pub enum RequestTarget<'a> {
    Resource(ResourceAttributes<'a>),
    /// A path that is no resource: `/version`, but also `/apis/apps`.
    Path(&'a str),
}

#[derive(Clone, Debug, Default)]
pub struct ResourceAttributes<'a> {
    pub group: Cow<'a, str>,
    pub resource: Cow<'a, str>,
    pub subresource: Option<Cow<'a, str>>,
    pub namespace: Option<Cow<'a, str>>,
    /// Also the one name that a list or watch selects.
    pub name: Option<Cow<'a, str>>,
    /// `field=value` requirements of a list or watch.
    pub fields: Vec<(String, String)>,
    /// `label=value` requirements of a list or watch.
    pub labels: Vec<(String, String)>,
}

impl ResourceAttributes<'_> {
    pub fn selects(&self, field: &str, value: &str) -> bool {
        self.fields.iter().any(|(f, v)| f == field && v == value)
    }

    /// The value that a list or watch requires a label to have.
    pub fn selected_label(&self, label: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| key == label).map(|(_, value)| value.as_str())
    }

    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// As messages name it: `pods/status`.
    pub fn full_resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource),
            None => self.resource.to_string(),
        }
    }
}

impl<'a> Attributes<'a> {
    pub fn from_request(method: &'a Method, path: &'a str, route: &'a Route<'a>, query: &Query) -> Self {
        match route {
            Route::Resource(route) => {
                let verb = verb(method, route, query);
                Self { verb, target: RequestTarget::Resource(resource(verb, route, query)) }
            }
            Route::Other | Route::Groups { .. } | Route::Group(_) | Route::GroupVersion { .. } => {
                Self { verb: path_verb(method), target: RequestTarget::Path(path) }
            }
        }
    }

    /// The namespace whose bindings hold.
    pub fn namespace(&self) -> Option<&str> {
        match &self.target {
            RequestTarget::Resource(resource) => resource.namespace.as_deref(),
            RequestTarget::Path(_) => None,
        }
    }
}

fn path_verb(method: &Method) -> &str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => method.as_str(),
    }
}

fn verb<'a>(method: &'a Method, route: &ResourceRoute<'_>, query: &Query) -> &'a str {
    match (method, route.name.is_some()) {
        (&Method::GET, _) if (query.watch && route.subresource.is_none()) || route.watch => "watch",
        (&Method::GET, true) => "get",
        (&Method::GET, false) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, true) => "delete",
        (&Method::DELETE, false) => "deletecollection",
        (other, _) => other.as_str(),
    }
}

fn resource<'a>(verb: &str, route: &'a ResourceRoute<'a>, query: &Query) -> ResourceAttributes<'a> {
    let borrowed = |text: &'a Option<Cow<'a, str>>| text.as_deref().map(Cow::Borrowed);
    let selecting = ["list", "watch", "deletecollection"].contains(&verb);
    let fields = if selecting { equalities(&query.field_selector) } else { Vec::new() };
    let labels = if selecting { equal_labels(&query.label_selector) } else { Vec::new() };
    let selected = fields.iter().find(|(field, _)| field == "metadata.name").map(|(_, name)| Cow::Owned(name.clone()));
    // A namespace is within itself: whoever administers it may look at it.
    let is_namespace = route.group.is_empty() && route.plural == "namespaces";
    let namespace = if is_namespace { &route.name } else { &route.namespace };
    ResourceAttributes {
        group: Cow::Borrowed(&route.group),
        resource: Cow::Borrowed(&route.plural),
        subresource: borrowed(&route.subresource),
        namespace: borrowed(namespace),
        name: borrowed(&route.name).or(selected),
        fields,
        labels,
    }
}

/// What a label selector requires labels to be, as [`equalities`].
fn equal_labels(selector: &str) -> Vec<(String, String)> {
    let labels = Labels::parse(selector).unwrap_or_default();
    let equal = labels.terms().iter().filter(|term| matches!(term.relation, Relation::Equals | Relation::In));
    let single = equal.filter_map(|term| match term.values.as_slice() {
        [value] => Some((term.key.clone(), value.clone())),
        _ => None,
    });
    single.collect()
}

/// What a field selector requires fields to be. One that cannot be read requires nothing, and is refused later.
fn equalities(selector: &str) -> Vec<(String, String)> {
    let fields = Fields::parse(selector).unwrap_or_default();
    let equal = fields.requirements().iter().filter(|requirement| requirement.op == Operator::Equals);
    equal.map(|requirement| (requirement.field.clone(), requirement.value.clone())).collect()
}
