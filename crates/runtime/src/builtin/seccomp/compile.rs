//! Compiles a seccomp profile to the BPF programs that the kernel runs.
//!
//! A filter of `seccompiler` knows two answers: one for what its rules name, one for everything else. A profile with more
//! becomes several, and the kernel takes the strictest of their answers: the first lets through all that has a rule of its
//! own, and each further one gives its one answer to what it is for.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::{Action, Argument, Operator, Profile, Rule};

pub type Filters = Vec<BpfProgram>;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

const EPERM: u32 = 1;

pub fn compile(profile: &Profile) -> Result<Filters, String> {
    let otherwise = action(profile.default_action, profile.default_errno_ret);
    let answers =
        profile.syscalls.iter().map(|rule| (action(rule.action, rule.errno_ret.or(profile.default_errno_ret)), rule));
    let named: Vec<(SeccompAction, &Rule)> = answers.filter(|(answer, _)| *answer != otherwise).collect();
    let mut filters = Filters::new();
    if otherwise != SeccompAction::Allow {
        let all = rules(named.iter().map(|(_, rule)| *rule))?;
        filters.push(filter(all, otherwise, SeccompAction::Allow)?);
    }
    let mut done = vec![SeccompAction::Allow];
    for (answer, _) in &named {
        if !done.contains(answer) {
            done.push(answer.clone());
            let these = rules(named.iter().filter(|(each, _)| each == answer).map(|(_, rule)| *rule))?;
            filters.push(filter(these, SeccompAction::Allow, answer.clone())?);
        }
    }
    Ok(filters)
}

fn filter(rules: Rules, otherwise: SeccompAction, named: SeccompAction) -> Result<BpfProgram, String> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(compile_error)?;
    let filter = SeccompFilter::new(rules, otherwise, named, arch).map_err(compile_error)?;
    filter.try_into().map_err(compile_error)
}

fn rules<'a>(from: impl Iterator<Item = &'a Rule>) -> Result<Rules, String> {
    // `None`: whatever the arguments.
    let mut all: BTreeMap<i64, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for rule in from {
        // What this machine has no number for cannot be called either.
        let numbers = rule.names.iter().chain(&rule.name).filter_map(|name| name.parse::<Sysno>().ok());
        for number in numbers.map(|number| i64::from(number.id())) {
            let entry = all.entry(number).or_insert_with(|| Some(Vec::new()));
            if rule.args.is_empty() {
                *entry = None;
            } else if let Some(list) = entry {
                let conditions = rule.args.iter().map(condition).collect::<Result<_, _>>()?;
                list.push(SeccompRule::new(conditions).map_err(compile_error)?);
            }
        }
    }
    Ok(all.into_iter().map(|(number, list)| (number, list.unwrap_or_default())).collect())
}

fn condition(argument: &Argument) -> Result<SeccompCondition, String> {
    let (operator, value) = match argument.op {
        Operator::NotEqual => (SeccompCmpOp::Ne, argument.value),
        Operator::Less => (SeccompCmpOp::Lt, argument.value),
        Operator::LessOrEqual => (SeccompCmpOp::Le, argument.value),
        Operator::Equal => (SeccompCmpOp::Eq, argument.value),
        Operator::GreaterOrEqual => (SeccompCmpOp::Ge, argument.value),
        Operator::Greater => (SeccompCmpOp::Gt, argument.value),
        Operator::MaskedEqual => (SeccompCmpOp::MaskedEq(argument.value), argument.value_two),
    };
    SeccompCondition::new(argument.index, SeccompCmpArgLen::Qword, operator, value).map_err(compile_error)
}

fn action(action: Action, errno: Option<u32>) -> SeccompAction {
    match action {
        Action::Allow => SeccompAction::Allow,
        Action::Log => SeccompAction::Log,
        Action::Errno => SeccompAction::Errno(errno.unwrap_or(EPERM)),
        Action::Trap => SeccompAction::Trap,
        Action::KillThread => SeccompAction::KillThread,
        Action::KillProcess => SeccompAction::KillProcess,
    }
}

fn compile_error(error: impl std::fmt::Display) -> String {
    format!("compile the seccomp profile: {error}")
}
