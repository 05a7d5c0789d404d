//! What must hold of one session.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::calls::Call;
use super::{Kind, Violation};
use crate::history::{Op, Outcome, Said, State};

/// How long after an answer a client asks the session what it lost, in microseconds.
const SOON: u64 = 10_000_000;

/// The answer to one execution.
#[derive(Clone, Copy)]
struct Seen<'a> {
    number: u64,
    state: &'a State,
    invoked: u64,
    completed: u64,
}

/// The fork that made each session, by the name of the new session.
pub(super) fn forks(calls: &[Call]) -> HashMap<&str, &Call> {
    let forks = calls.iter().filter_map(|call| match &call.op {
        Op::Fork { child, .. } => Some((child.as_str(), call)),
        _ => None,
    });
    forks.collect()
}

pub(super) fn check(
    name: &str,
    calls: &[&Call],
    fork: Option<&Call>,
    all: &BTreeMap<&str, Vec<&Call>>,
    found: &mut Vec<Violation>,
) {
    let mut report = |kind, detail: String| {
        found.push(Violation { kind, detail: format!("{name}: {detail}") });
    };
    let seen = observations(calls, &mut report);
    check_owner(&seen, &mut report);
    let statements = statements(calls);
    let inherited = fork.and_then(|fork| inherited(fork, all));
    check_first(&seen, inherited.as_ref(), &mut report);
    for pair in seen.windows(2) {
        check_step(&pair[0], &pair[1], &statements, &mut report);
    }
    check_numbers(calls, &seen, inherited.as_ref(), &mut report);
    check_end(calls, &mut report);
}

/// One observation for each execution, in the order in which they ran.
fn observations<'a>(calls: &[&'a Call], report: &mut impl FnMut(Kind, String)) -> Vec<Seen<'a>> {
    let mut by_number: BTreeMap<u64, Seen<'a>> = BTreeMap::new();
    // An execution may have run because of an earlier request that was not answered.
    let mut first_invoked: HashMap<u64, u64> = HashMap::new();
    for (number, call) in appends(calls) {
        let first = first_invoked.entry(number).or_insert(call.invoked);
        *first = call.invoked.min(*first);
    }
    for call in calls {
        let (Op::Append { number, .. }, Outcome::State(state)) = (&call.op, &call.outcome) else {
            continue;
        };
        let completed = call.completed.unwrap_or(u64::MAX);
        let invoked = first_invoked.get(number).copied().unwrap_or(call.invoked);
        let seen = Seen { number: *number, state, invoked, completed };
        match by_number.get_mut(number) {
            None => {
                by_number.insert(*number, seen);
            }
            Some(first) => {
                if first.state.began_ns != state.began_ns || first.state.list != state.list {
                    let detail = format!(
                        "execution {number} ran at {} and at {}",
                        first.state.began_ns, state.began_ns
                    );
                    report(Kind::RanTwice, detail);
                }
                first.completed = first.completed.min(completed);
            }
        }
    }
    let mut seen: Vec<Seen<'a>> = by_number.into_values().collect();
    seen.sort_by_key(|seen| seen.state.began_ns);
    seen
}

/// Executions do not overlap, follow the order of the requests, and leave each sandbox once.
fn check_owner(seen: &[Seen<'_>], report: &mut impl FnMut(Kind, String)) {
    let mut left: BTreeSet<&str> = BTreeSet::new();
    for pair in seen.windows(2) {
        let (first, then) = (&pair[0], &pair[1]);
        if first.state.ended_ns > then.state.began_ns {
            let (one, two) = (first.number, then.number);
            report(Kind::TwoOwners, format!("executions {one} and {two} ran at the same time"));
        }
        if then.completed < first.invoked {
            let (one, two) = (first.number, then.number);
            report(
                Kind::Order,
                format!("{two} was answered before {one} was requested, and ran after it"),
            );
        }
        if first.state.sandbox != then.state.sandbox {
            left.insert(&first.state.sandbox);
        }
        if left.contains(then.state.sandbox.as_str()) {
            let detail =
                format!("execution {} ran in a sandbox that the session had left", then.number);
            report(Kind::TwoOwners, detail);
        }
    }
}

/// When a session said that it had lost something, and what.
fn statements(calls: &[&Call]) -> Vec<(u64, u64, Said)> {
    let said = calls.iter().filter_map(|call| {
        let said = match &call.outcome {
            Outcome::Said(said) => *said,
            Outcome::State(state) => state.said,
            _ => return None,
        };
        (said != Said::Kept).then_some((call.invoked, call.completed.unwrap_or(u64::MAX), said))
    });
    said.collect()
}

/// The list and file with which a fork begins: at least what its parent had acknowledged.
struct Inherited {
    least: Vec<u64>,
    /// All numbers that the parent may have had.
    possible: BTreeSet<u64>,
}

fn inherited(fork: &Call, all: &BTreeMap<&str, Vec<&Call>>) -> Option<Inherited> {
    let parent = all.get(fork.op.session()?)?;
    let before = observations(parent, &mut |_, _| {});
    let last = before.iter().rfind(|seen| seen.completed < fork.invoked);
    // The parent inherited numbers too; they are in the lists that it showed.
    let mut possible: BTreeSet<u64> =
        before.iter().flat_map(|seen| seen.state.list.iter().copied()).collect();
    possible.extend(
        appends(parent)
            .filter(|(_, call)| call.invoked < fork.completed.unwrap_or(u64::MAX))
            .map(|(n, _)| n),
    );
    Some(Inherited {
        least: last.map(|seen| seen.state.list.clone()).unwrap_or_default(),
        possible,
    })
}

fn appends<'a>(calls: &'a [&Call]) -> impl Iterator<Item = (u64, &'a Call)> {
    calls.iter().filter_map(|call| match &call.op {
        Op::Append { number, .. } => Some((*number, *call)),
        _ => None,
    })
}

fn check_first(
    seen: &[Seen<'_>],
    inherited: Option<&Inherited>,
    report: &mut impl FnMut(Kind, String),
) {
    let (Some(first), Some(inherited)) = (seen.first(), inherited) else { return };
    if first.state.said == Said::Kept && !first.state.list.starts_with(&inherited.least) {
        let detail =
            format!("a fork has {:?}, and its parent had {:?}", first.state.list, inherited.least);
        report(Kind::LostWrite, detail);
    }
}

/// From one execution to the next, the list and the file only grow, unless the session said otherwise.
fn check_step(
    first: &Seen<'_>,
    then: &Seen<'_>,
    statements: &[(u64, u64, Said)],
    report: &mut impl FnMut(Kind, String),
) {
    // A statement is about these two if it came after the first was requested and soon after the second was answered.
    let until = then.completed.saturating_add(SOON);
    let heard = statements
        .iter()
        .filter(|(invoked, completed, _)| *completed >= first.invoked && *invoked <= until);
    let said: BTreeSet<Said> = heard.map(|(_, _, said)| *said).collect();
    let may_lose_file = said.contains(&Said::WentBack) || said.contains(&Said::Lost);
    let may_lose_list = may_lose_file || said.contains(&Said::LostKernel);
    let steps = [
        ("list", &first.state.list, &then.state.list, may_lose_list),
        ("file", &first.state.file, &then.state.file, may_lose_file),
    ];
    for (what, old, new, may_lose) in steps {
        let common = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        if common < old.len() && !may_lose {
            let lost: Vec<u64> =
                old[common..].iter().copied().filter(|n| !new.contains(n)).collect();
            let detail = format!(
                "the {what} lost {lost:?} before execution {}, and the session did not say so",
                then.number
            );
            report(Kind::LostWrite, detail);
        }
        // After going back, nothing of what was lost may return.
        if common < old.len() && new[common..].iter().any(|n| old.contains(n)) {
            let detail = format!("the {what} {old:?} became {new:?}");
            report(Kind::Order, detail);
        }
    }
}

/// Numbers are in a list once, and were requested before they were seen.
fn check_numbers(
    calls: &[&Call],
    seen: &[Seen<'_>],
    inherited: Option<&Inherited>,
    report: &mut impl FnMut(Kind, String),
) {
    let mut requested: HashMap<u64, (u64, bool)> = HashMap::new();
    for (number, call) in appends(calls) {
        let never_ran = matches!(call.outcome, Outcome::Refused { .. });
        let known = requested.entry(number).or_insert((call.invoked, true));
        known.0 = known.0.min(call.invoked);
        known.1 &= never_ran;
    }
    for seen in seen {
        for (what, numbers) in [("list", &seen.state.list), ("file", &seen.state.file)] {
            let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
            if distinct.len() != numbers.len() {
                report(Kind::RanTwice, format!("a number is twice in the {what} {numbers:?}"));
            }
            if numbers.last() != Some(&seen.number) {
                let detail = format!("after execution {} the {what} is {numbers:?}", seen.number);
                report(Kind::Order, detail);
            }
            for number in distinct {
                let is_inherited = inherited.is_some_and(|from| from.possible.contains(&number));
                let is_known = match requested.get(&number) {
                    Some((invoked, never_ran)) => !never_ran && *invoked <= seen.completed,
                    None => is_inherited,
                };
                if !is_known {
                    report(Kind::Invented, format!("the {what} has {number}, which never ran"));
                }
            }
        }
    }
}

/// A session ends only on request, or gives a reason; and after its end it runs nothing.
fn check_end(calls: &[&Call], report: &mut impl FnMut(Kind, String)) {
    let stopped = calls
        .iter()
        .filter(|call| matches!(call.op, Op::Stop { .. }))
        .map(|call| call.invoked)
        .min();
    for call in calls {
        let Outcome::Ended { because } = &call.outcome else { continue };
        let was_stopped = stopped.is_some_and(|at| call.completed.unwrap_or(u64::MAX) >= at);
        if because.is_empty() && !was_stopped {
            report(Kind::LostSession, "it ended without a reason".to_owned());
        }
    }
    let ended = calls.iter().filter(|call| matches!(call.outcome, Outcome::Ended { .. }));
    let Some(ended) = ended.filter_map(|call| call.completed).min() else { return };
    let mut requested: HashMap<u64, u64> = HashMap::new();
    for (number, call) in appends(calls) {
        // The result of an earlier execution can still be read.
        let first = *requested.entry(number).or_insert(call.invoked);
        if first > ended && matches!(call.outcome, Outcome::State(_)) {
            report(
                Kind::LostSession,
                format!("execution {number} ran after the session had ended"),
            );
        }
    }
}
