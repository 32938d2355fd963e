//! Sets of field paths.
//!
//! A set is a tree of [`PathElement`]s. A node may be a member itself (`.` in managed fields), lead to members below it, or
//! both; a node that is neither is never kept.

use std::cmp::Ordering;

use super::path::PathElement;

/// A set of paths below one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet<'a> {
    /// Sorted, each element once.
    nodes: Vec<(PathElement<'a>, Node<'a>)>,
}

/// What a set says of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node<'a> {
    /// Whether the place itself is in the set.
    pub member: bool,
    pub children: FieldSet<'a>,
}

/// A path, for messages.
pub type Path<'a> = Vec<PathElement<'a>>;

impl<'a> Node<'a> {
    pub fn member() -> Self {
        Self { member: true, children: FieldSet::default() }
    }

    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    fn combine(self, other: Self) -> Self {
        Self { member: self.member || other.member, children: self.children.union(other.children) }
    }
}

impl<'a> FieldSet<'a> {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PathElement<'a>, &Node<'a>)> {
        self.nodes.iter().map(|(element, node)| (element, node))
    }

    pub fn get(&self, element: &PathElement<'_>) -> Option<&Node<'a>> {
        self.find(element).ok().map(|at| &self.nodes[at].1)
    }

    fn find(&self, element: &PathElement<'_>) -> Result<usize, usize> {
        self.nodes.binary_search_by(|(own, _)| own.cmp(element))
    }

    /// Adds a node; one that is there already is joined with it. Cheap for elements that come in order.
    pub fn insert(&mut self, element: PathElement<'a>, node: Node<'a>) {
        if node.is_empty() {
            return;
        }
        if self.nodes.last().is_none_or(|(last, _)| *last < element) {
            return self.nodes.push((element, node));
        }
        match self.find(&element) {
            Ok(at) => {
                let own = std::mem::take(&mut self.nodes[at].1);
                self.nodes[at].1 = own.combine(node);
            }
            Err(at) => self.nodes.insert(at, (element, node)),
        }
    }

    /// Adds one path.
    pub fn insert_path(&mut self, path: impl IntoIterator<Item = PathElement<'a>, IntoIter: DoubleEndedIterator>) {
        let mut steps = path.into_iter().rev();
        let Some(last) = steps.next() else { return }; // nobody owns a whole object
        let mut set = FieldSet::default();
        set.insert(last, Node::member());
        for step in steps {
            let mut outer = FieldSet::default();
            outer.insert(step, Node { member: false, children: set });
            set = outer;
        }
        *self = std::mem::take(self).union(set);
    }

    /// Whether the set has this very path.
    pub fn contains(&self, path: &[PathElement<'_>]) -> bool {
        let Some((last, above)) = path.split_last() else { return false };
        let at = above.iter().try_fold(self, |set, step| set.get(step).map(|node| &node.children));
        at.and_then(|set| set.get(last)).is_some_and(|node| node.member)
    }

    /// All paths, in upstream's order: at each place its members first, then what is below them.
    pub fn paths(&self) -> Vec<Path<'a>> {
        fn visit<'a>(set: &FieldSet<'a>, at: &mut Path<'a>, paths: &mut Vec<Path<'a>>) {
            for (element, _) in set.iter().filter(|(_, node)| node.member) {
                paths.push(at.iter().chain([element]).cloned().collect());
            }
            for (element, node) in set.iter() {
                at.push(element.clone());
                visit(&node.children, at, paths);
                at.pop();
            }
        }
        let mut paths = Vec::new();
        visit(self, &mut Path::new(), &mut paths);
        paths
    }

    /// Walks two sets at once and keeps what `keep` makes of the nodes.
    fn zip(self, other: Self, keep: impl Fn(Option<Node<'a>>, Option<Node<'a>>) -> Option<Node<'a>>) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let mut push = |element, node: Option<Node<'a>>| {
            if let Some(node) = node.filter(|node| !node.is_empty()) {
                nodes.push((element, node));
            }
        };
        let (mut left, mut right) = (self.nodes.into_iter().peekable(), other.nodes.into_iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some((a, _)), Some((b, _))) => a.cmp(b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            match (a, b) {
                (Some((element, a)), Some((_, b))) => push(element, keep(Some(a), Some(b))),
                (Some((element, a)), None) => push(element, keep(Some(a), None)),
                (None, Some((element, b))) => push(element, keep(None, Some(b))),
                (None, None) => break,
            }
        }
        Self { nodes }
    }

    pub fn union(self, other: Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            (false, false) => self.zip(other, |a, b| match (a, b) {
                (Some(a), Some(b)) => Some(a.combine(b)),
                (a, b) => a.or(b),
            }),
        }
    }

    pub fn intersection(&self, other: &FieldSet<'_>) -> Self {
        let mut out = Self::default();
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        while let (Some((a, x)), Some((b, y))) = (left.peek(), right.peek()) {
            match a.cmp(b) {
                Ordering::Less => drop(left.next()),
                Ordering::Greater => drop(right.next()),
                Ordering::Equal => {
                    let node = Node { member: x.member && y.member, children: x.children.intersection(&y.children) };
                    out.insert(a.clone(), node);
                    left.next();
                    right.next();
                }
            }
        }
        out
    }

    /// Paths of this set that the other does not have.
    pub fn difference(&self, other: &FieldSet<'_>) -> Self {
        self.without(other, false)
    }

    /// The same, and nothing below a path that the other has.
    pub fn recursive_difference(&self, other: &FieldSet<'_>) -> Self {
        self.without(other, true)
    }

    fn without(&self, other: &FieldSet<'_>, recursive: bool) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        let mut out = Self::default();
        for (element, node) in &self.nodes {
            match other.get(element) {
                None => out.nodes.push((element.clone(), node.clone())),
                Some(gone) if gone.member && recursive => {}
                Some(gone) => {
                    let children = node.children.without(&gone.children, recursive);
                    out.insert(element.clone(), Node { member: node.member && !gone.member, children });
                }
            }
        }
        out
    }

    /// Whether every path of this set is in the other.
    pub fn is_subset(&self, other: &FieldSet<'_>) -> bool {
        self.nodes.iter().all(|(element, node)| {
            other
                .get(element)
                .is_some_and(|theirs| (theirs.member || !node.member) && node.children.is_subset(&theirs.children))
        })
    }

    /// Whether the sets have a path in common.
    pub fn intersects(&self, other: &FieldSet<'_>) -> bool {
        self.nodes.iter().any(|(element, node)| {
            other
                .get(element)
                .is_some_and(|theirs| (theirs.member && node.member) || node.children.intersects(&theirs.children))
        })
    }
}

impl<'a> FromIterator<Path<'a>> for FieldSet<'a> {
    fn from_iter<I: IntoIterator<Item = Path<'a>>>(paths: I) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert_path(path);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &'static str) -> Path<'static> {
        text.split('.').map(|name| PathElement::Field(name.into())).collect()
    }

    fn set(paths: &[&'static str]) -> FieldSet<'static> {
        paths.iter().map(|text| path(text)).collect()
    }

    #[test]
    fn a_place_and_what_is_below_it_are_told_apart() {
        let set = set(&["a", "a.b.c", "d.e"]);
        for (text, expected) in
            [("a", true), ("a.b", false), ("a.b.c", true), ("d", false), ("d.e", true), ("x", false)]
        {
            assert_eq!(set.contains(&path(text)), expected, "{text}");
        }
        assert!(!set.contains(&[]));
    }

    #[test]
    fn the_recursive_difference_takes_what_is_below_along() {
        let all = set(&["a", "a.b", "a.b.c", "d"]);
        assert_eq!(all.difference(&set(&["a"])), set(&["a.b", "a.b.c", "d"]));
        assert_eq!(all.recursive_difference(&set(&["a"])), set(&["d"]));
        assert_eq!(all.recursive_difference(&set(&["a.b"])), set(&["a", "d"]));
    }

    const NAMES: [&str; 7] = ["a", "b", "a.a", "a.b", "a.b.c", "b.c", "b.c.a"];

    fn any_set() -> impl Strategy<Value = FieldSet<'static>> {
        proptest::sample::subsequence(&NAMES[..], 0..NAMES.len()).prop_map(|names| set(&names))
    }

    proptest! {
        #[test]
        fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set()) {
            let (union, both) = (a.clone().union(b.clone()), a.intersection(&b));
            for name in NAMES {
                let (p, in_a, in_b) = (path(name), a.contains(&path(name)), b.contains(&path(name)));
                prop_assert_eq!(union.contains(&p), in_a || in_b);
                prop_assert_eq!(both.contains(&p), in_a && in_b);
                prop_assert_eq!(a.difference(&b).contains(&p), in_a && !in_b);
            }
            prop_assert_eq!(a.intersects(&b), !both.is_empty());
            prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
            prop_assert!(a.difference(&a).is_empty());
            prop_assert_eq!(union.paths().into_iter().collect::<FieldSet<'_>>(), union);
        }
    }
}
