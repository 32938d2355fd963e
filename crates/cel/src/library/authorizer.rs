//! Kubernetes' authorizer library: `authorizer.group('').resource('pods').namespace('x').check('list').allowed()`.
//!
//! The host decides. Its decisions may take reads that an evaluation cannot wait for: [`Authorizer::decide`] then says
//! nothing, the evaluation ends with [`EvalError::AuthorizationNeeded`], and the host evaluates anew with the answer.

use std::{fmt, sync::Arc};

use super::{Function, no_such_overload};
use crate::{error::EvalError, evaluate::Context, value::Value};

/// As upstream: two checks fit into one evaluation.
const CHECK_COST: u64 = 350_000;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuthorizationCheck {
    /// `namespace` and `name` of a service account; otherwise the user of the request.
    pub service_account: Option<(Box<str>, Box<str>)>,
    /// A path of a request that names no resource; then all other fields are empty.
    pub path: Option<Box<str>>,
    pub group: Box<str>,
    pub resource: Box<str>,
    pub subresource: Box<str>,
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub field_selector: Option<Box<str>>,
    pub label_selector: Option<Box<str>>,
    pub verb: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationDecision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// Decides for the expressions of a request.
pub trait Authorizer: Sync {
    /// The decision, if it is known already.
    fn decide(&self, check: &AuthorizationCheck) -> Option<AuthorizationDecision>;
}

/// A value that `authorizer` leads to.
#[derive(Clone)]
pub struct AuthorizerValue<'a> {
    host: &'a dyn Authorizer,
    stage: Arc<Stage>,
}

#[derive(Clone, Debug)]
enum Stage {
    Authorizer(AuthorizationCheck),
    Path(AuthorizationCheck),
    Group(AuthorizationCheck),
    Resource(AuthorizationCheck),
    Decision(AuthorizationDecision),
}

impl fmt::Debug for AuthorizerValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stage.fmt(f)
    }
}

impl<'a> AuthorizerValue<'a> {
    /// The variable `authorizer`.
    pub fn new(host: &'a dyn Authorizer) -> Self {
        Self { host, stage: Arc::new(Stage::Authorizer(AuthorizationCheck::default())) }
    }

    /// The variable `authorizer.requestResource`.
    pub fn for_resource(host: &'a dyn Authorizer, check: AuthorizationCheck) -> Self {
        Self { host, stage: Arc::new(Stage::Resource(check)) }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match &*self.stage {
            Stage::Authorizer(_) => AUTHORIZER,
            Stage::Path(_) => "kubernetes.authorization.PathCheck",
            Stage::Group(_) => "kubernetes.authorization.GroupCheck",
            Stage::Resource(_) => RESOURCE_CHECK,
            Stage::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    fn with_stage(&self, stage: Stage) -> Value<'a> {
        Value::Authorizer(Self { host: self.host, stage: Arc::new(stage) })
    }
}

/// The type of `authorizer`.
pub const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
/// The type of `authorizer.requestResource`.
pub const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

const BUILDER: &[&str] = &["kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck"];

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "path",
        signatures: &["kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck"],
        call: |_, args| match root(args)? {
            (_, _, "") => Err(EvalError::message("path must not be empty")),
            (value, check, path) => {
                Ok(value.with_stage(Stage::Path(AuthorizationCheck { path: Some(path.into()), ..check.clone() })))
            }
        },
    },
    Function {
        name: "group",
        signatures: &["kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck"],
        call: |_, args| {
            let (value, check, group) = root(args)?;
            Ok(value.with_stage(Stage::Group(AuthorizationCheck { group: group.into(), ..check.clone() })))
        },
    },
    Function {
        name: "serviceAccount",
        signatures: &["kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer"],
        call: service_account,
    },
    Function {
        name: "resource",
        signatures: &["kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck"],
        call: |_, args| match args {
            [Value::Authorizer(value), Value::String(resource)] => match &*value.stage {
                Stage::Group(check) => {
                    let check = AuthorizationCheck { resource: (&**resource).into(), ..check.clone() };
                    Ok(value.with_stage(Stage::Resource(check)))
                }
                _ => no_such_overload(),
            },
            _ => no_such_overload(),
        },
    },
    Function {
        name: "subresource",
        signatures: BUILDER,
        call: |_, args| build(args, |check, text| check.subresource = text),
    },
    Function {
        name: "namespace",
        signatures: BUILDER,
        call: |_, args| build(args, |check, text| check.namespace = text),
    },
    Function { name: "name", signatures: BUILDER, call: |_, args| build(args, |check, text| check.name = text) },
    Function {
        name: "fieldSelector",
        signatures: BUILDER,
        call: |_, args| build(args, |check, text| check.field_selector = Some(text)),
    },
    Function {
        name: "labelSelector",
        signatures: BUILDER,
        call: |_, args| build(args, |check, text| check.label_selector = Some(text)),
    },
    Function {
        name: "check",
        signatures: &[
            "kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision",
            "kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision",
        ],
        call: check,
    },
    Function {
        name: "allowed",
        signatures: &["kubernetes.authorization.Decision.() -> bool"],
        call: |_, args| Ok(Value::Bool(decision(args)?.allowed)),
    },
    Function {
        name: "reason",
        signatures: &["kubernetes.authorization.Decision.() -> string"],
        call: |_, args| Ok(Value::string(decision(args)?.reason.clone())),
    },
    Function {
        name: "errored",
        signatures: &["kubernetes.authorization.Decision.() -> bool"],
        call: |_, args| Ok(Value::Bool(decision(args)?.error.is_some())),
    },
    Function {
        name: "error",
        signatures: &["kubernetes.authorization.Decision.() -> string"],
        call: |_, args| Ok(Value::string(decision(args)?.error.clone().unwrap_or_default())),
    },
];

fn root<'v, 'a>(
    args: &'v [Value<'a>],
) -> Result<(&'v AuthorizerValue<'a>, &'v AuthorizationCheck, &'v str), EvalError> {
    match args {
        [Value::Authorizer(value), Value::String(text)] => match &*value.stage {
            Stage::Authorizer(check) => Ok((value, check, text)),
            _ => Err(EvalError::NoSuchOverload),
        },
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn service_account<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Authorizer(value), Value::String(namespace), Value::String(name)] = args else {
        return no_such_overload();
    };
    if !matches!(&*value.stage, Stage::Authorizer(_)) {
        return no_such_overload();
    }
    for (text, what) in [(name, "name"), (namespace, "namespace")] {
        let valid = super::format::find_format("dns1123Subdomain").is_some_and(|format| format.accepts(text));
        if !valid {
            return Err(EvalError::message(format!("Invalid service account {what}")));
        }
    }
    let service_account = Some(((&**namespace).into(), (&**name).into()));
    Ok(value.with_stage(Stage::Authorizer(AuthorizationCheck { service_account, ..Default::default() })))
}

fn build<'a>(args: &[Value<'a>], set: fn(&mut AuthorizationCheck, Box<str>)) -> Result<Value<'a>, EvalError> {
    let [Value::Authorizer(value), Value::String(text)] = args else { return no_such_overload() };
    let Stage::Resource(check) = &*value.stage else { return no_such_overload() };
    let mut check = check.clone();
    set(&mut check, (&**text).into());
    Ok(value.with_stage(Stage::Resource(check)))
}

fn check<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Authorizer(value), Value::String(verb)] = args else { return no_such_overload() };
    let (Stage::Path(asked) | Stage::Resource(asked)) = &*value.stage else { return no_such_overload() };
    context.meter.charge(CHECK_COST)?;
    let asked = AuthorizationCheck { verb: (&**verb).into(), ..asked.clone() };
    match value.host.decide(&asked) {
        Some(decision) => Ok(value.with_stage(Stage::Decision(decision))),
        None => Err(EvalError::AuthorizationNeeded(Arc::new(asked))),
    }
}

fn decision<'v>(args: &'v [Value<'_>]) -> Result<&'v AuthorizationDecision, EvalError> {
    match args {
        [Value::Authorizer(value)] => match &*value.stage {
            Stage::Decision(decision) => Ok(decision),
            _ => Err(EvalError::NoSuchOverload),
        },
        _ => Err(EvalError::NoSuchOverload),
    }
}
