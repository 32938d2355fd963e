//! The largest sizes of results, for the cost estimate: what a schema says of the operands says something of the result.

use crate::{
    expr::Expr,
    types::{ListType, Type},
};

/// The type of a call's result with the largest size that its arguments allow.
pub(super) fn sized_result(name: &str, ty: Type, args: &[Expr]) -> Type {
    let size = |index: usize| args.get(index).and_then(|arg| arg.ty.max_size());
    let sum = || Some(size(0)?.saturating_add(size(1)?));
    match (name, &ty) {
        ("_+_", Type::String(_)) => Type::String(sum()),
        ("_+_", Type::Bytes(_)) => Type::Bytes(sum()),
        ("_+_", Type::List(list)) => resize(list, sum()),
        ("lowerAscii" | "upperAscii" | "trim" | "substring" | "charAt" | "find", Type::String(_)) => {
            Type::String(size(0))
        }
        ("strings.quote", Type::String(_)) => {
            Type::String(size(0).map(|size| size.saturating_mul(2).saturating_add(2)))
        }
        ("replace", Type::String(_)) => {
            // At worst every character, and the place before each, is replaced.
            let replaced = size(0)
                .zip(size(2))
                .map(|(text, with)| text.saturating_add(text.saturating_add(1).saturating_mul(with)));
            Type::String(replaced)
        }
        ("split" | "findAll", Type::List(list)) => {
            let element = Type::String(size(0));
            resize(&ListType { element, ..(**list).clone() }, size(0).map(|size| size.saturating_add(1)))
        }
        ("join", Type::String(_)) => {
            let element = match &args[0].ty {
                Type::List(list) => list.element.max_size(),
                _ => None,
            };
            let separator = if args.len() > 1 { size(1) } else { Some(0) };
            let joined = size(0).zip(element).zip(separator);
            Type::String(
                joined.map(|((count, element), separator)| count.saturating_mul(element.saturating_add(separator))),
            )
        }
        _ => ty,
    }
}

fn resize(list: &ListType, max_items: Option<u64>) -> Type {
    Type::List(ListType { max_items, ..list.clone() }.into())
}
