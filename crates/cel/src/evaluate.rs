//! Evaluates a checked expression. Every step is charged to the meter, so that an evaluation ends.
//!
//! The recursion is as deep as the expression, which the compiler bounds; variables that are expressions themselves add
//! their depth, which is bounded here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use regex::Regex;

use crate::{
    budget::Meter,
    error::EvalError,
    expr::{Comprehension, Element, Entry, Expr, Kind, StructField},
    library::operators::into_vec,
    limits::MAX_EVALUATION_DEPTH,
    program::Program,
    types::Type,
    value::{Key, List, Map, Struct, Value},
    variables::Variables,
};

const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;
const STRUCT_COST: u64 = 40;
/// Upstream's price of looking a key up is the same for all keys; what is longer than this many bytes costs its length.
const MAX_FREE_KEY: usize = 256;

type EvalResult<'a> = Result<Value<'a>, EvalError>;

/// The state of one evaluation.
pub(crate) struct Context<'c, 'a> {
    pub meter: Meter,
    pub regexes: HashMap<String, Arc<Regex>>,
    /// The compiled literal of the call that is being evaluated.
    pub literal_pattern: Option<&'a Arc<Regex>>,
    variables: &'c Variables<'a>,
    /// Variables of macros. An accumulator may be an error that a later element overrules.
    slots: Vec<EvalResult<'a>>,
    depth: usize,
}

impl<'c, 'a> Context<'c, 'a> {
    pub fn new(meter: Meter, variables: &'c Variables<'a>, program: &Program) -> Self {
        Self {
            meter,
            regexes: HashMap::new(),
            literal_pattern: None,
            variables,
            slots: vec![Ok(Value::Null); program.slots],
            depth: program.depth,
        }
    }

    /// Evaluates a variable's expression at the cost of this evaluation.
    pub fn evaluate_nested(&mut self, program: &'a Program) -> EvalResult<'a> {
        if self.depth + program.depth > MAX_EVALUATION_DEPTH {
            return Err(EvalError::message("variables refer to each other too deeply"));
        }
        self.depth += program.depth;
        let slots = std::mem::replace(&mut self.slots, vec![Ok(Value::Null); program.slots]);
        let pattern = self.literal_pattern.take();
        let result = self.evaluate(&program.root);
        self.slots = slots;
        self.literal_pattern = pattern;
        self.depth -= program.depth;
        result
    }

    pub fn evaluate(&mut self, expr: &'a Expr) -> EvalResult<'a> {
        match &expr.kind {
            Kind::Literal(value) => Ok(value.clone()),
            Kind::Variable(name) => self.variable(name, &expr.ty),
            Kind::Local(slot) => {
                self.meter.charge(1)?;
                self.slots[*slot].clone()
            }
            Kind::Select { operand, field, optional } => self.select(operand, field, *optional),
            Kind::Test { operand, field } => self.test(operand, field),
            Kind::Index { operand, index, optional } => self.index(operand, index, *optional),
            Kind::Call { .. } => self.call(expr),
            Kind::And(operands) => self.logical(operands, false),
            Kind::Or(operands) => self.logical(operands, true),
            Kind::Conditional(parts) => self.conditional(parts),
            Kind::NotStrictlyFalse(operand) => self.not_strictly_false(operand),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.structure(name, fields),
            Kind::Bind { slot, init, body } => {
                self.slots[*slot] = self.evaluate(init);
                self.evaluate(body)
            }
            Kind::Append { slot, element } => self.append(*slot, element),
            Kind::Insert { slot, key, value } => self.insert(*slot, key, value),
            Kind::InsertAll { slot, entries } => self.insert_all(*slot, entries),
            Kind::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    #[inline(never)]
    fn variable(&mut self, name: &str, ty: &'a Type) -> EvalResult<'a> {
        self.meter.charge(1)?;
        let variables = self.variables;
        variables.get(self, name, ty)
    }

    #[inline(never)]
    fn select(&mut self, operand: &'a Expr, field: &str, optional: bool) -> EvalResult<'a> {
        let operand = self.evaluate(operand)?;
        self.meter.charge(1)?;
        if let Value::Optional(inner) = operand {
            return match inner {
                Some(inner) => optional_value(find_field(&inner, field)?),
                None => Ok(Value::Optional(None)),
            };
        }
        let found = find_field(&operand, field)?;
        if optional {
            return optional_value(found);
        }
        found.unwrap_or_else(|| Err(EvalError::no_such_key(field)))
    }

    #[inline(never)]
    fn test(&mut self, operand: &'a Expr, field: &str) -> EvalResult<'a> {
        let operand = self.evaluate(operand)?;
        self.meter.charge(1)?;
        Ok(Value::Bool(match &operand {
            Value::Optional(Some(inner)) => find_field(inner, field)?.is_some(),
            Value::Optional(None) => false,
            operand => find_field(operand, field)?.is_some(),
        }))
    }

    #[inline(never)]
    fn index(&mut self, operand: &'a Expr, index: &'a Expr, optional: bool) -> EvalResult<'a> {
        let operand = self.evaluate(operand)?;
        let index = self.evaluate(index)?;
        self.meter.charge(1)?;
        if let (Value::Map(_), Value::String(key)) = (&operand, &index) {
            self.meter.charge_traversal(key.len().saturating_sub(MAX_FREE_KEY))?;
        }
        if let Value::Optional(inner) = operand {
            return match inner {
                Some(inner) => optional_value(find_index(&inner, &index)?),
                None => Ok(Value::Optional(None)),
            };
        }
        let found = find_index(&operand, &index)?;
        if optional {
            return optional_value(found);
        }
        found.unwrap_or_else(|| match operand {
            Value::List(_) => Err(EvalError::message(format_args!("index out of bounds: {index}"))),
            _ => Err(EvalError::no_such_key(&index)),
        })
    }

    #[inline(never)]
    fn call(&mut self, expr: &'a Expr) -> EvalResult<'a> {
        let Kind::Call { function, args, pattern, .. } = &expr.kind else { return Err(EvalError::NoSuchOverload) };
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(self.evaluate(arg)?);
        }
        self.meter.charge(1)?;
        self.literal_pattern = pattern.as_ref();
        (function.call)(self, &values)
    }

    /// `&&` and `||`: either side alone may decide, whatever the other's error is.
    #[inline(never)]
    fn logical(&mut self, operands: &'a [Expr; 2], decisive: bool) -> EvalResult<'a> {
        let left = self.evaluate(&operands[0]);
        match &left {
            Ok(Value::Bool(value)) if *value == decisive => return left,
            Err(error) if error.is_fatal() => return left,
            _ => {}
        }
        let right = self.evaluate(&operands[1]);
        match (&left, &right) {
            (_, Ok(Value::Bool(value))) if *value == decisive => right,
            (_, Err(error)) if error.is_fatal() => right,
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => right,
            (Err(_), _) => left,
            (_, Err(_)) => right,
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    #[inline(never)]
    fn conditional(&mut self, parts: &'a [Expr; 3]) -> EvalResult<'a> {
        match self.evaluate(&parts[0])? {
            Value::Bool(true) => self.evaluate(&parts[1]),
            Value::Bool(false) => self.evaluate(&parts[2]),
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    #[inline(never)]
    fn not_strictly_false(&mut self, operand: &'a Expr) -> EvalResult<'a> {
        match self.evaluate(operand) {
            Ok(Value::Bool(value)) => Ok(Value::Bool(value)),
            Err(error) if error.is_fatal() => Err(error),
            _ => Ok(Value::Bool(true)),
        }
    }

    #[inline(never)]
    fn list(&mut self, elements: &'a [Element]) -> EvalResult<'a> {
        self.meter.charge(LIST_COST)?;
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            let value = self.evaluate(&element.value)?;
            if element.optional {
                values.extend(take_optional(value)?);
            } else {
                values.push(value);
            }
        }
        Ok(Value::list(values))
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [Entry]) -> EvalResult<'a> {
        self.meter.charge(MAP_COST)?;
        let mut values = BTreeMap::new();
        for entry in entries {
            let key = self.evaluate(&entry.key)?;
            let value = self.evaluate(&entry.value)?;
            let value = if entry.optional { take_optional(value)? } else { Some(value) };
            if let Some(value) = value {
                self.insert_key(&mut values, &key, value)?;
            }
        }
        Ok(Value::map(values))
    }

    fn insert_key(
        &mut self,
        values: &mut BTreeMap<Key, Value<'a>>,
        key: &Value<'a>,
        value: Value<'a>,
    ) -> Result<(), EvalError> {
        self.meter.charge_traversal(key.traversal_size())?;
        match values.insert(Key::from_value(key)?, value) {
            None => Ok(()),
            Some(_) => Err(EvalError::message(format_args!("Failed with repeated key: {key}"))),
        }
    }

    #[inline(never)]
    fn structure(&mut self, name: &Arc<str>, fields: &'a [StructField]) -> EvalResult<'a> {
        self.meter.charge(STRUCT_COST)?;
        let mut values = BTreeMap::new();
        for field in fields {
            let value = self.evaluate(&field.value)?;
            let value = if field.optional { take_optional(value)? } else { Some(value) };
            if let Some(value) = value {
                values.insert(field.name.clone(), value);
            }
        }
        Ok(Value::Struct(Arc::new(Struct { name: name.clone(), fields: values })))
    }

    /// The accumulator, taken out of its slot: nothing else refers to it, so that it grows in place.
    fn take_slot(&mut self, slot: usize) -> EvalResult<'a> {
        std::mem::replace(&mut self.slots[slot], Ok(Value::Null))
    }

    #[inline(never)]
    fn append(&mut self, slot: usize, element: &'a Expr) -> EvalResult<'a> {
        let element = self.evaluate(element)?;
        self.meter.charge(1)?;
        match self.take_slot(slot)? {
            Value::List(list) => {
                let mut values = into_vec(list)?;
                values.push(element);
                Ok(Value::list(values))
            }
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    #[inline(never)]
    fn insert(&mut self, slot: usize, key: &'a Expr, value: &'a Expr) -> EvalResult<'a> {
        let key = self.evaluate(key)?;
        let value = self.evaluate(value)?;
        let mut values = self.take_map(slot)?;
        self.insert_key(&mut values, &key, value)?;
        Ok(Value::map(values))
    }

    #[inline(never)]
    fn insert_all(&mut self, slot: usize, entries: &'a Expr) -> EvalResult<'a> {
        let Value::Map(entries) = self.evaluate(entries)? else { return Err(EvalError::NoSuchOverload) };
        let mut values = self.take_map(slot)?;
        for key in entries.keys() {
            if let Some(value) = entries.get(&key) {
                self.insert_key(&mut values, &key, value?)?;
            }
        }
        Ok(Value::map(values))
    }

    fn take_map(&mut self, slot: usize) -> Result<BTreeMap<Key, Value<'a>>, EvalError> {
        self.meter.charge(1)?;
        match self.take_slot(slot)? {
            Value::Map(Map::Values(values)) => Ok(Arc::try_unwrap(values).unwrap_or_else(|shared| (*shared).clone())),
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    #[inline(never)]
    fn comprehension(&mut self, comprehension: &'a Comprehension) -> EvalResult<'a> {
        let range = self.evaluate(&comprehension.range)?;
        let accumulator = comprehension.accumulator;
        self.slots[accumulator] = self.evaluate(&comprehension.init);
        match range {
            Value::List(list) => {
                for index in 0..list.len() {
                    self.meter.charge(1)?;
                    let element = || list.get(index).unwrap_or(Ok(Value::Null));
                    match comprehension.second {
                        Some(second) => {
                            self.slots[comprehension.variable] = Ok(Value::Int(index as i64));
                            self.slots[second] = element();
                        }
                        None => self.slots[comprehension.variable] = element(),
                    }
                    if !self.step(comprehension)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                self.meter.charge(map.len() as u64)?;
                for key in map.keys() {
                    self.meter.charge(1)?;
                    if let Some(second) = comprehension.second {
                        self.slots[second] = map.get(&key).unwrap_or(Ok(Value::Null));
                    }
                    self.slots[comprehension.variable] = Ok(key);
                    if !self.step(comprehension)? {
                        break;
                    }
                }
            }
            _ => return Err(EvalError::NoSuchOverload),
        }
        self.evaluate(&comprehension.result)
    }

    /// One turn; tells whether there is another.
    fn step(&mut self, comprehension: &'a Comprehension) -> Result<bool, EvalError> {
        match self.evaluate(&comprehension.condition)? {
            Value::Bool(true) => {}
            _ => return Ok(false),
        }
        let result = self.evaluate(&comprehension.step);
        if let Err(error) = &result
            && error.is_fatal()
        {
            return Err(error.clone());
        }
        self.slots[comprehension.accumulator] = result;
        Ok(true)
    }
}

fn find_field<'a>(value: &Value<'a>, field: &str) -> Result<Option<EvalResult<'a>>, EvalError> {
    match value {
        Value::Map(map) => Ok(map.get_field(field)),
        Value::Struct(object) => Ok(object.fields.get(field).cloned().map(Ok)),
        Value::Null => Err(EvalError::no_such_key(field)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn find_index<'a>(value: &Value<'a>, index: &Value<'a>) -> Result<Option<EvalResult<'a>>, EvalError> {
    match (value, index) {
        (Value::List(list), index) => {
            let index = match index {
                Value::Int(index) => usize::try_from(*index).ok(),
                Value::Uint(index) => usize::try_from(*index).ok(),
                Value::Double(index) => crate::value::exact_int(*index).and_then(|index| usize::try_from(index).ok()),
                _ => return Err(EvalError::message(format!("unsupported index type '{}' in list", index.type_name()))),
            };
            Ok(index.and_then(|index| List::get(list, index)))
        }
        (Value::Map(map), index) => Ok(map.get(index)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn optional_value<'a>(found: Option<EvalResult<'a>>) -> EvalResult<'a> {
    match found {
        Some(value) => Ok(Value::some(value?)),
        None => Ok(Value::Optional(None)),
    }
}

/// The value of an element `?x`: nothing if there is none.
fn take_optional<'a>(value: Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    match value {
        Value::Optional(value) => Ok(value.map(|value| (*value).clone())),
        value => {
            Err(EvalError::message(format_args!("cannot initialize optional entry from non-optional value {value}")))
        }
    }
}
