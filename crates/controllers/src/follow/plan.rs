//! Whether a follower stays where it is. Pure.

/// A pod that a follower is tied to by a term of its required affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub name: String,
    /// Of its node, by the term's topology key; unknown if the node has no such label, or is gone.
    pub domain: Option<String>,
    pub is_ready: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub own_domain: Option<String>,
    pub leaders: Vec<Leader>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    pub uid: String,
    pub terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Stay,
    Follow { why: String },
}

/// A follower goes when no leader of some term is where it is, and one is ready elsewhere. While its leader is nowhere, it
/// stays: the leader may come back to where it was.
pub fn judge(world: &World) -> Verdict {
    let moved = world.terms.iter().find_map(|term| {
        let own = term.own_domain.as_ref()?;
        if term.leaders.iter().any(|leader| leader.domain.as_ref().is_none_or(|domain| domain == own)) {
            return None;
        }
        term.leaders.iter().find(|leader| leader.is_ready)
    });
    match moved {
        None => Verdict::Stay,
        Some(leader) => {
            let domain = leader.domain.as_deref().unwrap_or_default();
            Verdict::Follow { why: format!("Evicted to follow pod {}, which has moved to {domain}", leader.name) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(domain: Option<&str>, is_ready: bool) -> Leader {
        Leader { name: "db".to_owned(), domain: domain.map(str::to_owned), is_ready }
    }

    fn judged(own: Option<&str>, leaders: &[Leader]) -> Verdict {
        let term = Term { own_domain: own.map(str::to_owned), leaders: leaders.to_vec() };
        judge(&World { uid: "u".to_owned(), terms: vec![term] })
    }

    #[test]
    fn a_follower_goes_where_its_leader_is_ready_and_nowhere_else() {
        let follow = Verdict::Follow { why: "Evicted to follow pod db, which has moved to b".to_owned() };
        for (own, leaders, expected) in [
            (Some("a"), vec![], Verdict::Stay),
            (Some("a"), vec![leader(Some("a"), false)], Verdict::Stay),
            (Some("a"), vec![leader(Some("b"), false)], Verdict::Stay),
            (Some("a"), vec![leader(Some("b"), true)], follow.clone()),
            (Some("a"), vec![leader(Some("b"), true), leader(Some("a"), true)], Verdict::Stay),
            (Some("a"), vec![leader(None, true)], Verdict::Stay),
            (None, vec![leader(Some("b"), true)], Verdict::Stay),
        ] {
            assert_eq!(judged(own, &leaders), expected, "{own:?} {leaders:?}");
        }
        let stays = Term { own_domain: Some("a".into()), leaders: vec![leader(Some("a"), true)] };
        let moved = Term { own_domain: Some("a".into()), leaders: vec![leader(Some("b"), true)] };
        let both = World { uid: "u".to_owned(), terms: vec![stays, moved] };
        assert_eq!(judge(&both), follow, "every term has to hold");
    }
}
