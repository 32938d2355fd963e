//! Sets and maps of the kernel's packet rules.

use super::{expressions, wire::Attributes};

/// What a part of a key or value is. Only programs that print rules care, apart from its size: all take four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Address,
    Protocol,
    Port,
    Number,
}

impl Part {
    fn kind(self) -> u32 {
        match self {
            Part::Address => 7,
            Part::Protocol => 12,
            Part::Port => 13,
            Part::Number => 19,
        }
    }
}

const PART_SIZE: u32 = 4;
const KIND_BITS: u32 = 6;
const VERDICT: u32 = 0xffff_ff00;

// Flags of a set.
const IS_MAP: u32 = 0x8;
const HAS_TIMEOUTS: u32 = 0x10;
const RULES_MAY_WRITE: u32 = 0x20;

#[derive(Clone, Copy, Debug)]
pub enum Holds {
    /// A set.
    Nothing,
    /// A map to values.
    Values(&'static [Part]),
    /// A map to what is done.
    Verdicts,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub key: &'static [Part],
    pub holds: Holds,
    /// Rules put elements in, at most so many, which leave by themselves.
    pub written_by_rules: Option<u32>,
}

impl Shape {
    pub(super) fn write(&self, number: u32, a: &mut Attributes<'_>) {
        let kind = |parts: &[Part]| parts.iter().fold(0, |kinds, part| kinds << KIND_BITS | part.kind());
        let size = |parts: &[Part]| parts.len() as u32 * PART_SIZE;
        let map = if matches!(self.holds, Holds::Nothing) { 0 } else { IS_MAP };
        let written = if self.written_by_rules.is_some() { HAS_TIMEOUTS | RULES_MAY_WRITE } else { 0 };
        a.text(2, self.name);
        a.number(3, map | written);
        a.number(4, kind(self.key));
        a.number(5, size(self.key));
        match self.holds {
            Holds::Nothing => {}
            Holds::Values(parts) => {
                a.number(6, kind(parts));
                a.number(7, size(parts));
            }
            Holds::Verdicts => a.number(6, VERDICT),
        }
        if let Some(most) = self.written_by_rules {
            a.nest(9, |a| a.number(1, most));
        }
        a.number(10, number);
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    None,
    Value(&'a [u8]),
    Jump(&'a str),
}

pub(super) fn element(a: &mut Attributes<'_>, key: &[u8], data: Data<'_>) {
    a.value(1, key);
    match data {
        Data::None => {}
        Data::Value(value) => a.value(2, value),
        Data::Jump(chain) => a.nest(2, |a| expressions::jump(a, chain)),
    }
}
