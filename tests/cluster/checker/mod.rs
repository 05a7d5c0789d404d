//! Decides whether a history can be that of a correct cluster. No I/O: the result depends on the history alone.
//!
//! - No execution runs twice: no number is in a list twice, and all answers about one execution are the same.
//! - No acknowledged write is lost: a number disappears only if the session said that it went back, or was lost.
//! - One owner: executions of a session do not overlap, and a session never returns to a sandbox that it had left.
//! - An acknowledged artifact has the content that was written.
//! - Every request is answered in time.

mod calls;
mod session;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::history::{Entry, Event, Op, Outcome};
use calls::Call;

/// A promise that the cluster did not keep.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    RanTwice,
    LostWrite,
    TwoOwners,
    Order,
    Invented,
    WrongArtifact,
    WrongResult,
    Late,
    LostSession,
}

/// All violations in a history. `bound` is how long an answer may take.
pub(crate) fn check(history: &[Entry], bound: Duration) -> Vec<Violation> {
    let calls = calls::pair(history);
    let mut found = Vec::new();
    check_times(&calls, bound, &mut found);
    check_artifacts(&calls, &mut found);
    check_runs(&calls, &mut found);
    let mut by_session: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &calls {
        if let Some(session) = call.op.session() {
            by_session.entry(session).or_default().push(call);
        }
    }
    let forks = session::forks(&calls);
    for (name, calls) in &by_session {
        session::check(name, calls, forks.get(name).copied(), &by_session, &mut found);
    }
    found
}

/// How many executions have a result.
pub(crate) fn executions(history: &[Entry]) -> u64 {
    let is_result =
        |entry: &&Entry| matches!(&entry.event, Event::Complete { outcome: Outcome::State(_), .. });
    history.iter().filter(is_result).count() as u64
}

fn check_times(calls: &[Call], bound: Duration, found: &mut Vec<Violation>) {
    let bound = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
    for call in calls {
        let took = call.completed.map(|completed| completed - call.invoked);
        // A gateway that is itself stopped, killed or cut off cannot answer.
        if took.is_none_or(|took| took > bound) && !call.gateway_is_faulty {
            let took = took.map_or("no answer".to_owned(), |took| format!("{} ms", took / 1000));
            found.push(Violation { kind: Kind::Late, detail: format!("{:?}: {took}", call.op) });
        }
    }
}

fn check_artifacts(calls: &[Call], found: &mut Vec<Violation>) {
    let mut sums: HashMap<&str, (&str, u64)> = HashMap::new();
    for call in calls {
        if let (Op::Publish { .. }, Outcome::Artifact { id, sha256 }) = (&call.op, &call.outcome) {
            sums.insert(id, (sha256, call.completed.unwrap_or(u64::MAX)));
        }
    }
    for call in calls {
        let Op::Fetch { artifact } = &call.op else { continue };
        let Some((sum, since)) = sums.get(artifact.as_str()) else { continue };
        let is_right = match &call.outcome {
            Outcome::Artifact { sha256, .. } => sha256 == sum,
            Outcome::Refused { status: 404 | 410, .. } => call.invoked < *since,
            _ => true,
        };
        if !is_right {
            let detail = format!("{artifact}: {:?}, and {sum} was stored", call.outcome);
            found.push(Violation { kind: Kind::WrongArtifact, detail });
        }
    }
}

fn check_runs(calls: &[Call], found: &mut Vec<Violation>) {
    for call in calls {
        if let (Op::Run { number }, Outcome::Number(result)) = (&call.op, &call.outcome)
            && *result != number * 2
        {
            let detail = format!("twice {number} is {result}");
            found.push(Violation { kind: Kind::WrongResult, detail });
        }
    }
}
