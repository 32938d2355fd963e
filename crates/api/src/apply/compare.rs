//! Which fields differ between two objects of one type.
//!
//! Lists of items with the same key, which no apply can make but older objects may have, are compared as a whole, as upstream does.

use serde_json::Value;

use super::{
    items::{self, Items, View},
    path::{PathElement, equal_values},
    set::{FieldSet, Node},
    typed::TypeRef,
};

/// What the right object has and the left has not, and so on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison<'a> {
    pub added: FieldSet<'a>,
    pub modified: FieldSet<'a>,
    pub removed: FieldSet<'a>,
}

impl<'a> Comparison<'a> {
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Everything that the right object sets.
    pub fn into_set_fields(self) -> FieldSet<'a> {
        self.added.union(self.modified)
    }

    /// What `keep` leaves of each set.
    pub fn filtered(self, keep: impl Fn(&FieldSet<'a>) -> FieldSet<'a>) -> Self {
        Self { added: keep(&self.added), modified: keep(&self.modified), removed: keep(&self.removed) }
    }
}

/// Compares two objects.
pub fn compare<'a, 's, T: TypeRef<'s>>(ty: T, left: &'a Value, right: &'a Value) -> Comparison<'a> {
    let Difference { added, modified, removed } = difference(ty, Some(left), Some(right));
    Comparison { added: added.children, modified: modified.children, removed: removed.children }
}

/// A [`Comparison`] at one place.
#[derive(Default)]
struct Difference<'a> {
    added: Node<'a>,
    modified: Node<'a>,
    removed: Node<'a>,
}

impl<'a> Difference<'a> {
    fn leaf(left: Option<&Value>, right: Option<&Value>) -> Self {
        let mut difference = Self::default();
        match (left, right) {
            (None, _) => difference.added.member = true,
            (_, None) => difference.removed.member = true,
            (Some(left), Some(right)) => difference.modified.member = !equal_values(left, right),
        }
        difference
    }

    fn insert(&mut self, element: impl Fn() -> PathElement<'a>, below: Self) {
        for (own, below) in
            [(&mut self.added, below.added), (&mut self.modified, below.modified), (&mut self.removed, below.removed)]
        {
            if !below.is_empty() {
                own.children.insert(element(), below);
            }
        }
    }

    /// A place with parts is new, or gone, as they are.
    fn mark_presence(mut self, left: Option<&Value>, right: Option<&Value>) -> Self {
        self.added.member |= left.is_none();
        self.removed.member |= left.is_some() && right.is_none();
        self
    }
}

fn difference<'a, 's, T: TypeRef<'s>>(ty: T, left: Option<&'a Value>, right: Option<&'a Value>) -> Difference<'a> {
    let Some(either) = right.or(left) else { return Difference::default() };
    let seen = items::view(ty, either);
    if let (Some(left), Some(right)) = (left, right)
        && matches!(items::view(ty, left), View::Leaf) != matches!(seen, View::Leaf)
    {
        return changed_kind(ty, left, right);
    }
    let hollow = |value: Option<&Value>| value.is_none_or(items::is_hollow);
    match seen {
        View::Leaf => Difference::leaf(left, right),
        View::Fields | View::Items(_) if hollow(left) && hollow(right) => Difference::leaf(left, right),
        View::Fields => fields_difference(ty, left, right).mark_presence(left, right),
        View::Items(items) => items_difference(items, left, right).mark_presence(left, right),
    }
}

/// Untyped data that was an object and is none any more, or the other way round: the place is changed, and so are the parts.
fn changed_kind<'a, 's, T: TypeRef<'s>>(ty: T, left: &'a Value, right: &'a Value) -> Difference<'a> {
    let mut difference = fields_difference(ty, Some(left), Some(right));
    difference.modified.member = true;
    difference
}

fn fields_difference<'a, 's, T: TypeRef<'s>>(
    ty: T,
    left: Option<&'a Value>,
    right: Option<&'a Value>,
) -> Difference<'a> {
    let mut difference = Difference::default();
    items::zip_fields(items::fields(left), items::fields(right), |name, a, b| {
        let Some(field) = ty.field(name) else { return };
        // Who writes such a field has not set it.
        let (a, b) = if field.always_written {
            (a.or_else(|| left.map(|_| &Value::Null)), b.or_else(|| right.map(|_| &Value::Null)))
        } else {
            (a, b)
        };
        if let (true, Some(a), Some(b)) = (field.always_written, a, b)
            && items::is_hollow(a)
            && items::is_hollow(b)
        {
            return;
        }
        let below = self::difference(field.ty, a, b);
        difference.insert(|| PathElement::Field(name.into()), below);
    });
    difference
}

fn items_difference<'a, 's, T: TypeRef<'s>>(
    items: Items<'s, T>,
    left: Option<&'a Value>,
    right: Option<&'a Value>,
) -> Difference<'a> {
    let (left, right) = (sorted_items(items, left), sorted_items(items, right));
    let (mut left, mut right) = (&left[..], &right[..]);
    let mut difference = Difference::default();
    loop {
        let element = match (left.first(), right.first()) {
            (Some((a, _)), Some((b, _))) => a.min(b),
            (Some((element, _)), None) | (None, Some((element, _))) => element,
            (None, None) => break,
        };
        let same = |list: &[(PathElement<'a>, &'a Value)]| list.iter().take_while(|(own, _)| own == element).count();
        let (a, b);
        (a, left) = left.split_at(same(left));
        (b, right) = right.split_at(same(right));
        difference.insert(|| element.clone(), same_key_difference(items, a, b));
    }
    difference
}

/// Compares the items that have one key.
fn same_key_difference<'a, 's, T: TypeRef<'s>>(
    items: Items<'s, T>,
    left: &[(PathElement<'a>, &'a Value)],
    right: &[(PathElement<'a>, &'a Value)],
) -> Difference<'a> {
    let single = |a: Option<&'a Value>, b: Option<&'a Value>| match items.item() {
        Some(ty) => difference(ty, a, b),
        None => Difference::leaf(a, b),
    };
    let first = |list: &[(PathElement<'a>, &'a Value)]| list.first().map(|(_, value)| *value);
    match (left.len(), right.len()) {
        (0..=1, 0..=1) => single(first(left), first(right)),
        (2.., 2..) => {
            let equal = left.len() == right.len() && left.iter().zip(right).all(|((_, a), (_, b))| equal_values(a, b));
            let modified = Node { member: !equal, ..Node::default() };
            Difference { modified, ..Difference::default() }
        }
        (2.., _) => {
            let mut difference = first(right).map(|item| single(None, Some(item))).unwrap_or_default();
            difference.removed.member = true;
            difference
        }
        (_, _) => {
            let mut difference = first(left).map(|item| single(Some(item), None)).unwrap_or_default();
            difference.added.member = true;
            difference
        }
    }
}

/// Items by what tells them apart, those with the same key in the list's order. Items that nothing tells apart are left out.
fn sorted_items<'a, 's, T: TypeRef<'s>>(
    items: Items<'s, T>,
    value: Option<&'a Value>,
) -> Vec<(PathElement<'a>, &'a Value)> {
    let list = items::list(value).iter();
    let mut sorted: Vec<_> = list.filter_map(|item| Some((items.element(item).ok()?, item))).collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    sorted
}
