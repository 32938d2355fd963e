//! Requirements of selectors on one label or field: key, operator and values.

use std::{cmp::Ordering, collections::BTreeMap};

use k8s_openapi::{
    api::core::v1::NodeSelectorRequirement, apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement,
};

pub type Labels = BTreeMap<String, String>;

/// What an object without labels has.
pub static UNLABELLED: Labels = Labels::new();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    /// Something newer than we know: matches nothing.
    #[default]
    Unknown,
}

impl Operator {
    pub fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => Self::Unknown,
        }
    }

    /// Whether `value`, or there being none, is admitted by what is asked for. Only numbers compare.
    #[inline]
    pub fn admits(self, asked: &[String], value: Option<&str>) -> bool {
        let among = || value.is_some_and(|value| asked.iter().any(|wanted| wanted == value));
        let compared = || Some(value?.parse::<i64>().ok()?.cmp(&asked.first()?.parse().ok()?));
        match self {
            Self::In => among(),
            Self::NotIn => !among(),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Gt => compared() == Some(Ordering::Greater),
            Self::Lt => compared() == Some(Ordering::Less),
            Self::Unknown => false,
        }
    }
}

pub trait Requirement {
    fn key(&self) -> &str;
    fn operator(&self) -> Operator;
    fn values(&self) -> &[String];

    fn admits(&self, value: Option<&str>) -> bool {
        self.operator().admits(self.values(), value)
    }

    fn holds(&self, labels: &Labels) -> bool {
        self.admits(labels.get(self.key()).map(String::as_str))
    }
}

macro_rules! as_the_api_writes_it {
    ($($form:ty),*) => {$(
        impl Requirement for $form {
            fn key(&self) -> &str {
                &self.key
            }

            fn operator(&self) -> Operator {
                Operator::parse(&self.operator)
            }

            fn values(&self) -> &[String] {
                self.values.as_deref().unwrap_or_default()
            }
        }
    )*};
}

as_the_api_writes_it!(NodeSelectorRequirement, LabelSelectorRequirement);

/// Whether labels have all the values that a plain map asks for.
pub fn has_labels(asked: &Labels, labels: &Labels) -> bool {
    asked.iter().all(|(key, value)| labels.get(key) == Some(value))
}
