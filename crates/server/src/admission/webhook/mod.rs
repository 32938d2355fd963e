//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: programs of users that change and judge writes.
//!
//! Mutating webhooks run one after the other, in the order of their configurations' names, each on what the ones before
//! made of the object; those with `reinvocationPolicy: IfNeeded` run once more if a later one changed it. Validating
//! webhooks run at the same time. A webhook that cannot be reached, hangs or answers garbage fails the write, or is passed
//! over, as its `failurePolicy` says; the words are upstream's.
//!
//! A dead webhook cannot lock out its own repair: webhook configurations are never subject to webhooks, and while nobody
//! serves the Service of a webhook, what makes up that Service (see [`matching::serves`]) is written without asking it,
//! with a warning to the client and in the log.

mod matching;
mod review;

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::join_all;
use mainstay_api::{crd::prune, descriptor::Descriptor, patch};
use mainstay_cel::AuthorizationCheck;
use serde_json::Value;

use self::{
    matching::Subject,
    review::{Verdict, WebhookResponse},
};
use super::{
    Plugin, Request, TxnAdditions,
    matching::{Attributes, Operation, other_kind, subresource_of as subresource},
    policy::{self, describe_request},
};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, metadata, object, scale_view},
    webhook::client::{Backend, WebhookError},
};

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

pub struct MutatingAdmissionWebhook;
pub struct ValidatingAdmissionWebhook;

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        !matching::is_exempt(d)
    }

    fn sees_scales(&self) -> bool {
        true
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        txn.revalidate |= mutate(request, "", Operation::Create, object, None).await?;
        Ok(())
    }

    async fn admit_update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let Some(subresource) = subresource(request.part) else { return Ok(()) };
        txn.revalidate |= mutate(request, subresource, Operation::Update, object, Some(old)).await?;
        Ok(())
    }

    /// There is nothing to change about an object that goes; a mutating webhook may still refuse.
    async fn delete(&self, request: &Request<'_>, old: &Value) -> ApiResult<()> {
        let subject = Subject {
            d: &request.target.d,
            subresource: "",
            operation: Operation::Delete,
            object: None,
            old: Some(old),
        };
        validate(request, MUTATING, &subject).await
    }

    async fn connect(&self, request: &Request<'_>, subresource: &str, options: &Value) -> ApiResult<()> {
        validate(request, MUTATING, &connection(request, subresource, options)).await
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        !matching::is_exempt(d)
    }

    fn sees_scales(&self) -> bool {
        true
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        let d = &request.target.d;
        let subject = Subject { d, subresource: "", operation: Operation::Create, object: Some(object), old: None };
        validate(request, VALIDATING, &subject).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let Some(subresource) = subresource(request.part) else { return Ok(()) };
        let d = &request.target.d;
        let subject = Subject { d, subresource, operation: Operation::Update, object: Some(object), old: Some(old) };
        validate(request, VALIDATING, &subject).await
    }

    async fn delete(&self, request: &Request<'_>, old: &Value) -> ApiResult<()> {
        let subject = Subject {
            d: &request.target.d,
            subresource: "",
            operation: Operation::Delete,
            object: None,
            old: Some(old),
        };
        validate(request, VALIDATING, &subject).await
    }

    async fn create_subresource(&self, request: &Request<'_>, subresource: &str, body: &Value) -> ApiResult<()> {
        let d = &request.target.d;
        let subject = Subject { d, subresource, operation: Operation::Create, object: Some(body), old: None };
        validate(request, VALIDATING, &subject).await
    }

    async fn connect(&self, request: &Request<'_>, subresource: &str, options: &Value) -> ApiResult<()> {
        validate(request, VALIDATING, &connection(request, subresource, options)).await
    }
}

fn connection<'a>(request: &Request<'a>, subresource: &'a str, options: &'a Value) -> Subject<'a> {
    Subject { d: &request.target.d, subresource, operation: Operation::Connect, object: Some(options), old: None }
}

/// A webhook with the configuration it is part of.
struct Hook {
    configuration: Arc<Value>,
    index: usize,
}

impl Hook {
    fn value(&self) -> &Value {
        &self.configuration["webhooks"][self.index]
    }

    fn name(&self) -> &str {
        self.value()["name"].as_str().unwrap_or_default()
    }

    fn ignores_failures(&self) -> bool {
        self.value()["failurePolicy"] == "Ignore"
    }
}

/// All webhooks of a kind, in the order in which they run.
fn hooks(request: &Request<'_>, plural: &str) -> Vec<Hook> {
    let configurations = request.api.admission_cache.list(plural, None);
    let hooks = configurations.into_iter().flat_map(|configuration| {
        let count = configuration.value["webhooks"].as_array().map_or(0, Vec::len);
        (0..count).map(move |index| Hook { configuration: configuration.value.clone(), index })
    });
    hooks.collect()
}

/// A write as a webhook is told of it: in the version of the resource that its rules name.
struct AskedSubject<'a> {
    d: Arc<Descriptor>,
    object: Option<Cow<'a, Value>>,
    old: Option<Cow<'a, Value>>,
}

impl AskedSubject<'_> {
    fn subject<'s>(&'s self, from: &Subject<'s>) -> Subject<'s> {
        let (object, old) = (self.object.as_deref(), self.old.as_deref());
        Subject { d: &self.d, subresource: from.subresource, operation: from.operation, object, old }
    }
}

/// Whether a webhook is asked about a write, and what about it.
async fn asked_about<'a>(
    hook: &Hook,
    request: &Request<'_>,
    subject: &Subject<'a>,
) -> ApiResult<Option<AskedSubject<'a>>> {
    let own = &request.target.d;
    let namespace = request.target.namespace.as_deref();
    let namespace = namespace.and_then(|name| request.api.admission_cache.get("namespaces", name));
    let namespace = namespace.as_ref().map(|namespace| &*namespace.value);
    let served = request.api.served.current();
    let Some(d) = matching::matched_version(hook.value(), &served, own, subject, namespace) else { return Ok(None) };
    // A Scale, the body of a POST to a subresource and the options of a connection are of a kind of their own.
    let is_body = !subject.subresource.is_empty() && subject.operation == Operation::Create;
    let is_same = d.api_version() == own.api_version() || is_body || other_kind(own, subject.object).is_some();
    let convert = |value: Option<&'a Value>| match value {
        Some(value) if !is_same => match policy::convert(own, &d, value) {
            Some(converted) => Ok(Some(Cow::Owned(converted))),
            None => Err(failed_calling(hook, &format!("the object cannot be converted to {}", d.api_version()))),
        },
        value => Ok(value.map(Cow::Borrowed)),
    };
    let (object, old) = (convert(subject.object)?, convert(subject.old)?);
    let asked = AskedSubject { object, old, d };
    let is_met = meets_conditions(hook, request, &asked.subject(subject)).await?;
    Ok(is_met.then_some(asked))
}

/// Whether the `matchConditions` of a webhook hold. One that fails is for the failure policy.
async fn meets_conditions(hook: &Hook, request: &Request<'_>, subject: &Subject<'_>) -> ApiResult<bool> {
    let listed = &hook.value()["matchConditions"];
    if listed.as_array().is_none_or(Vec::is_empty) {
        return Ok(true);
    }
    let conditions = request.api.match_conditions.get(listed).await?;
    let (d, asked) = (subject.d, request.target);
    let name = match subject.object.or(subject.old) {
        Some(object) if asked.name.is_empty() => metadata::string_field(object, "name").unwrap_or_default(),
        _ => &asked.name,
    };
    let namespace = asked.namespace.as_deref();
    let attributes = Attributes { operation: subject.operation, d, subresource: subject.subresource, namespace, name };
    let described = describe_request(request, &attributes, subject.object);
    let resource = AuthorizationCheck {
        group: (*d.group).into(),
        resource: (*d.plural).into(),
        subresource: subject.subresource.into(),
        namespace: namespace.unwrap_or_default().into(),
        name: name.into(),
        ..AuthorizationCheck::default()
    };
    match conditions.match_webhook(request, &described, &resource, subject.object, subject.old).await {
        Ok(held) => Ok(held),
        Err(_) if hook.ignores_failures() => Ok(false),
        Err(why) => Err(ApiError::forbidden(d, name, &why)),
    }
}

/// Runs the mutating webhooks; says whether they changed the object.
async fn mutate(
    request: &Request<'_>,
    subresource: &str,
    operation: Operation,
    object: &mut Value,
    old: Option<&Value>,
) -> ApiResult<bool> {
    let hooks = hooks(request, MUTATING);
    let (mut called, mut last_change) = (Vec::new(), None);
    for (position, hook) in hooks.iter().enumerate() {
        match mutate_once(hook, request, subresource, operation, object, old).await? {
            None => continue,
            Some(changed) => called.push((position, hook, changed)),
        }
        if called.last().is_some_and(|(_, _, changed)| *changed) {
            last_change = Some(position);
        }
    }
    for (position, hook, _) in called {
        let again = hook.value()["reinvocationPolicy"] == "IfNeeded" && last_change.is_some_and(|last| last > position);
        if again {
            mutate_once(hook, request, subresource, operation, object, old).await?;
        }
    }
    Ok(last_change.is_some())
}

/// Whether a webhook changed the object; nothing if it was not asked.
async fn mutate_once(
    hook: &Hook,
    request: &Request<'_>,
    subresource: &str,
    operation: Operation,
    object: &mut Value,
    old: Option<&Value>,
) -> ApiResult<Option<bool>> {
    let subject = Subject { d: &request.target.d, subresource, operation, object: Some(object), old };
    let Some(asked) = asked_about(hook, request, &subject).await? else { return Ok(None) };
    let Some(patch) = call(hook, request, &asked.subject(&subject), true).await? else { return Ok(Some(false)) };
    let mut changed = asked.object.as_deref().unwrap_or(object).clone();
    let failed = |why: String| {
        if hook.ignores_failures() { Ok(Some(false)) } else { Err(failed_calling(hook, &why)) }
    };
    if let Err(error) = patch::json(&mut changed, &patch) {
        return failed(error.to_string());
    }
    let own = &request.target.d;
    let is_other = other_kind(own, Some(object)).is_some();
    let definition = if request.part == Part::Scale { scale_view::DEFINITION } else { &asked.d.schema };
    if let Err(error) = request.api.schema.conform(definition, &mut changed) {
        return failed(error.to_string());
    }
    if let Some(custom) = asked.d.custom.as_ref().filter(|_| !is_other) {
        prune::prune_resource(&custom.schema, &mut changed); // of what a client sends it was done when that was decoded
    }
    let shown = asked.object.as_deref().unwrap_or(object);
    for field in ["apiVersion", "kind"] {
        if changed[field] != shown[field] {
            return failed(format!("the webhook changed {field}"));
        }
    }
    if asked.d.api_version() != own.api_version() && !is_other {
        match policy::convert(&asked.d, own, &changed) {
            Some(converted) => changed = converted,
            None => return failed(format!("the result cannot be converted to {}", own.api_version())),
        }
    }
    for field in ["name", "namespace", "uid"] {
        if changed["metadata"][field] != object["metadata"][field] {
            return failed(format!("the webhook changed metadata.{field}"));
        }
    }
    let is_changed = changed != *object;
    *object = changed;
    Ok(Some(is_changed))
}

async fn validate(request: &Request<'_>, plural: &str, subject: &Subject<'_>) -> ApiResult<()> {
    let mut all = Vec::new();
    for hook in hooks(request, plural) {
        if let Some(asked) = asked_about(&hook, request, subject).await? {
            all.push((hook, asked));
        }
    }
    let calls = all
        .iter()
        .map(|(hook, asked)| async move { call(hook, request, &asked.subject(subject), plural == MUTATING).await });
    join_all(calls).await.into_iter().collect::<ApiResult<Vec<_>>>().map(drop)
}

fn failed_calling(hook: &Hook, why: &str) -> Box<ApiError> {
    ApiError::internal(format!("failed calling webhook {:?}: {why}", hook.name()))
}

/// Asks a webhook; returns the patch it wants. A failure that its policy ignores is no patch.
async fn call(hook: &Hook, request: &Request<'_>, subject: &Subject<'_>, may_patch: bool) -> ApiResult<Option<Value>> {
    let value = hook.value();
    let side_effects = value["sideEffects"].as_str().unwrap_or_default();
    if request.dry_run && !["None", "NoneOnDryRun"].contains(&side_effects) {
        let why = format!("admission webhook {:?} does not support dry run", hook.name());
        return Err(ApiError::bad_request(why));
    }
    let review = review::review(value, request, subject);
    let seconds = value["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30);
    let (client, config) = (&request.api.webhooks, &value["clientConfig"]);
    let response: Result<Value, _> = client.call(request.api, config, Duration::from_secs(seconds), &review).await;
    let parsed = match &response {
        Ok(response) => review::parse_response(&review, response, may_patch),
        Err(error) => Err(error.to_string()),
    };
    match parsed {
        Ok(response) => finish(hook, request, response),
        Err(why) if hook.ignores_failures() => {
            tracing::debug!(webhook = hook.name(), why, "a webhook failed and is passed over, as its policy says");
            Ok(None)
        }
        Err(why) => {
            let is_unreachable = matches!(response, Err(WebhookError::Unreachable(_)));
            if is_unreachable && repairs_backend(request, config, subject).await {
                tracing::warn!(webhook = hook.name(), why, "a webhook is down; what serves it is written without it");
                let name = hook.name();
                request
                    .notes
                    .warn(format!("webhook {name:?} is down and was not asked: the object belongs to what serves it"));
                return Ok(None);
            }
            Err(failed_calling(hook, &why))
        }
    }
}

fn finish(hook: &Hook, request: &Request<'_>, response: WebhookResponse) -> ApiResult<Option<Value>> {
    response.warnings.into_iter().for_each(|warning| request.notes.warn(warning));
    for (key, value) in response.audit_annotations {
        request.notes.annotate(&format!("{}/{key}", hook.name()), value);
    }
    match response.verdict {
        Verdict::Allowed { patch } => Ok(patch),
        Verdict::Denied { code, reason, message } => {
            Err(ApiError::denied_by_webhook(code, &reason, review::denial_message(hook.name(), &reason, &message)))
        }
    }
}

/// Whether a write is to what serves a webhook that nobody serves now.
async fn repairs_backend(request: &Request<'_>, config: &Value, subject: &Subject<'_>) -> bool {
    let Ok(backend) = Backend::parse(config) else { return false };
    let Some((namespace, name)) = backend.service() else { return false };
    let Some(object) =
        subject.object.or(subject.old).filter(|_| request.target.namespace.as_deref() == Some(namespace))
    else {
        return false;
    };
    let service = request.api.core_object("services", Some(namespace), name).await.ok().flatten();
    let scaled = match request.part {
        // A Scale does not say which pods it is about; its object does.
        Part::Scale => {
            match request.api.existing(request.target).await.and_then(|entry| object::parse(subject.d, &entry)) {
                Ok(scaled) => Some(scaled),
                Err(_) => return false,
            }
        }
        _ => None,
    };
    matching::serves(service.as_ref(), name, subject.d, scaled.as_ref().unwrap_or(object))
        && request.api.webhooks.has_no_endpoint(request.api, namespace, name, backend.port()).await
}
