//! Defaulting and validation of the objects of one kind, as the generic verbs call them.
//!
//! The server works on JSON values; rules are written on the typed kinds. [`Typed`] joins the
//! two: it decodes once, lets the [`Rules`] default and validate, and encodes the result.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    field::{Errors, FieldError, Path},
    validation::meta,
};

/// Parts of a pod's spec that have subresources of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecPart {
    /// `/ephemeralcontainers`.
    EphemeralContainers,
    /// `/resize`.
    Resources,
}

/// What the generic verbs ask of a kind. Metadata is not its business; `object` has already been
/// checked against the schema.
pub trait Strategy: Send + Sync {
    /// Completes a new object (defaults, initial status) and says what is wrong with it.
    fn create(&self, object: &mut Value) -> Errors;

    /// The same, with what [`Strategy::warnings`] would say of the result.
    fn create_advised(&self, object: &mut Value) -> (Errors, Vec<String>) {
        let errors = self.create(object);
        (errors, self.warnings(object))
    }

    /// The same for a change of what is desired; `old` is the stored object.
    fn update(&self, object: &mut Value, old: &Value) -> Errors;

    /// The same for a write through `/status`; spec is already that of `old`.
    fn update_status(&self, object: &mut Value, old: &Value) -> Errors {
        let _ = (object, old);
        Errors::new()
    }

    /// The same for a write through a subresource that may change one part of what is desired.
    fn update_part(&self, part: SpecPart, object: &mut Value, old: &Value) -> Errors {
        let _ = (part, object, old);
        Errors::new()
    }

    /// Completes an object that another server stored, as far as defaults do; one that cannot be decoded is left as it is.
    fn default_stored(&self, object: &mut Value) {
        let _ = object;
    }

    /// Advice for the client that wrote the object, sent as `Warning` headers.
    fn warnings(&self, object: &Value) -> Vec<String> {
        let _ = object;
        Vec::new()
    }
}

/// A kind about which the schema says all there is to say.
pub struct Plain;

impl Strategy for Plain {
    fn create(&self, _: &mut Value) -> Errors {
        Errors::new()
    }

    fn update(&self, _: &mut Value, _: &Value) -> Errors {
        Errors::new()
    }
}

/// Defaulting and validation of one typed kind. Pure; none of it looks at a clock.
pub trait Rules: Send + Sync + 'static {
    type Object: Serialize + DeserializeOwned;

    /// Finalizers of the kind that have no domain.
    const BARE_FINALIZERS: &'static [&'static str] = &[];

    /// Fills what the author left out. Must be idempotent: it runs on every write.
    fn default(object: &mut Self::Object);

    /// Sets what only the server decides on a new object: the first status, dropped fields.
    fn prepare_create(object: &mut Self::Object) {
        let _ = object;
    }

    /// Carries over what an update may not touch silently.
    fn prepare_update(object: &mut Self::Object, old: &Self::Object) {
        let _ = (object, old);
    }

    fn validate(object: &Self::Object, errors: &mut Errors);

    /// What only a new object may not have. [`Rules::validate`] runs as well.
    fn validate_create(object: &Self::Object, errors: &mut Errors) {
        let _ = (object, errors);
    }

    /// What an update may not change. [`Rules::validate`] runs as well.
    fn validate_update(object: &Self::Object, old: &Self::Object, errors: &mut Errors) {
        let _ = (object, old, errors);
    }

    fn validate_status(object: &Self::Object, old: &Self::Object, errors: &mut Errors) {
        let _ = (object, old, errors);
    }

    /// What a write through a subresource makes of the object: the old one but for that part.
    fn prepare_part(part: SpecPart, object: &mut Self::Object, old: &Self::Object) {
        let _ = (part, object, old);
    }

    /// What may not change about that part. [`Rules::validate`] runs as well.
    fn validate_part(part: SpecPart, object: &Self::Object, old: &Self::Object, errors: &mut Errors) {
        let _ = (part, object, old, errors);
    }

    fn warnings(object: &Self::Object) -> Vec<String> {
        let _ = object;
        Vec::new()
    }
}

/// [`Rules`] as a [`Strategy`].
pub struct Typed<R>(PhantomData<fn() -> R>);

impl<R> Typed<R> {
    #[expect(clippy::new_without_default, reason = "a const constructor for statics")]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, Errors> {
    T::deserialize(object).map_err(|error| FieldError::type_invalid(&Path::ROOT, Value::Null, error.to_string()).into())
}

fn encode<T: Serialize>(object: &T, into: &mut Value) -> Result<(), Errors> {
    *into = serde_json::to_value(object)
        .map_err(|error| FieldError::type_invalid(&Path::ROOT, Value::Null, error.to_string()))?;
    Ok(())
}

impl<R: Rules> Typed<R> {
    fn try_create(object: &mut Value) -> Result<(Errors, Vec<String>), Errors> {
        let mut typed: R::Object = decode(object)?;
        let mut errors = Errors::new();
        meta::validate_finalizer_domains(object, R::BARE_FINALIZERS, &mut errors);
        R::default(&mut typed);
        R::prepare_create(&mut typed);
        R::validate(&typed, &mut errors);
        R::validate_create(&typed, &mut errors);
        encode(&typed, object)?;
        Ok((errors, R::warnings(&typed)))
    }

    fn try_update(object: &mut Value, old: &Value) -> Result<Errors, Errors> {
        let (mut typed, mut old): (R::Object, R::Object) = (decode(object)?, decode(old)?);
        let mut errors = Errors::new();
        meta::validate_finalizer_domains(object, R::BARE_FINALIZERS, &mut errors);
        R::default(&mut old); // it may have been stored before a field existed
        R::default(&mut typed);
        R::prepare_update(&mut typed, &old);
        R::validate(&typed, &mut errors);
        R::validate_update(&typed, &old, &mut errors);
        encode(&typed, object)?;
        Ok(errors)
    }

    fn try_update_status(object: &mut Value, old: &Value) -> Result<Errors, Errors> {
        let (typed, old): (R::Object, R::Object) = (decode(object)?, decode(old)?);
        let mut errors = Errors::new();
        R::validate_status(&typed, &old, &mut errors);
        encode(&typed, object)?;
        Ok(errors)
    }

    fn try_update_part(part: SpecPart, object: &mut Value, old: &Value) -> Result<Errors, Errors> {
        let (mut typed, mut old): (R::Object, R::Object) = (decode(object)?, decode(old)?);
        let mut errors = Errors::new();
        R::default(&mut old);
        R::prepare_part(part, &mut typed, &old);
        R::default(&mut typed);
        R::validate(&typed, &mut errors);
        R::validate_part(part, &typed, &old, &mut errors);
        encode(&typed, object)?;
        Ok(errors)
    }
}

impl<R: Rules> Strategy for Typed<R> {
    fn create(&self, object: &mut Value) -> Errors {
        self.create_advised(object).0
    }

    fn create_advised(&self, object: &mut Value) -> (Errors, Vec<String>) {
        Self::try_create(object).unwrap_or_else(|errors| (errors, Vec::new()))
    }

    fn update(&self, object: &mut Value, old: &Value) -> Errors {
        Self::try_update(object, old).unwrap_or_else(|errors| errors)
    }

    fn update_status(&self, object: &mut Value, old: &Value) -> Errors {
        Self::try_update_status(object, old).unwrap_or_else(|errors| errors)
    }

    fn update_part(&self, part: SpecPart, object: &mut Value, old: &Value) -> Errors {
        Self::try_update_part(part, object, old).unwrap_or_else(|errors| errors)
    }

    fn default_stored(&self, object: &mut Value) {
        if let Ok(mut typed) = decode::<R::Object>(object) {
            R::default(&mut typed);
            let _ = encode(&typed, object);
        }
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        decode(object).map(|typed: R::Object| R::warnings(&typed)).unwrap_or_default()
    }
}
