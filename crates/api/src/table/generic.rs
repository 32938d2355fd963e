//! Name and age: what every kind has, and all that some show.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Columns,
    column::{AGE, NAME},
    read::{age, name},
};

pub static NAME_AGE: Columns = Columns { definitions: &[NAME, AGE], cells: name_age };

fn name_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}
