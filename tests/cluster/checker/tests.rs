//! Histories made by hand: correct ones, and one for each kind of violation.

use std::time::Duration;

use super::{Kind, check};
use crate::history::{Entry, Event, Op, Outcome, Said, State};

const BOUND: Duration = Duration::from_secs(30);

/// A history in which each step takes a millisecond.
#[derive(Default)]
struct Script {
    entries: Vec<Entry>,
    calls: u64,
}

impl Script {
    fn at(&mut self, event: Event) {
        let at = 1000 * (self.entries.len() as u64 + 1);
        self.entries.push(Entry { at, event });
    }

    fn invoke(&mut self, op: Op) -> u64 {
        self.calls += 1;
        let call = self.calls;
        self.at(Event::Invoke { call, gateway: 0, op });
        call
    }

    fn complete(&mut self, call: u64, outcome: Outcome) {
        self.at(Event::Complete { call, outcome });
    }

    fn call(mut self, op: Op, outcome: Outcome) -> Script {
        let call = self.invoke(op);
        self.complete(call, outcome);
        self
    }

    /// Appends `number` to session `s`; the state after it is `list`. It runs at the time `began`.
    fn append(self, number: u64, list: &[u64], sandbox: &str, began: u64) -> Script {
        self.said(number, list, sandbox, began, Said::Kept)
    }

    fn said(self, number: u64, list: &[u64], sandbox: &str, began: u64, said: Said) -> Script {
        self.call(append(number), Outcome::State(state(list, sandbox, began, said)))
    }

    fn unknown(self, number: u64) -> Script {
        self.call(append(number), Outcome::Unknown { why: "the connection broke".into() })
    }

    #[track_caller]
    fn assert_correct(self) {
        assert_eq!(check(&self.entries, BOUND), []);
    }

    #[track_caller]
    fn violates(self, kind: Kind) {
        let found = check(&self.entries, BOUND);
        assert!(found.iter().any(|violation| violation.kind == kind), "{found:#?}");
    }
}

fn append(number: u64) -> Op {
    Op::Append { session: "s".into(), number }
}

fn state(list: &[u64], sandbox: &str, began: u64, said: Said) -> State {
    let (list, file) = (list.to_vec(), list.to_vec());
    State { list, file, sandbox: sandbox.into(), began_ns: began, ended_ns: began + 5, said }
}

fn on(session: &str, op: fn(String) -> Op) -> Op {
    op(session.to_owned())
}

fn show() -> Op {
    on("s", |session| Op::Show { session })
}

fn stop() -> Op {
    on("s", |session| Op::Stop { session })
}

#[test]
fn a_list_that_grows_is_correct() {
    Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "a", 20).assert_correct();
}

#[test]
fn an_unknown_execution_may_have_run_or_not() {
    Script::default()
        .append(1, &[1], "a", 10)
        .unknown(2)
        .append(3, &[1, 2, 3], "a", 30)
        .assert_correct();
    Script::default()
        .append(1, &[1], "a", 10)
        .unknown(2)
        .append(3, &[1, 3], "a", 30)
        .assert_correct();
}

#[test]
fn a_retry_with_the_same_answer_is_correct() {
    Script::default().unknown(1).append(1, &[1], "a", 10).append(1, &[1], "a", 10).assert_correct();
}

#[test]
fn an_execution_that_ran_twice_is_found() {
    Script::default().append(1, &[1], "a", 10).append(1, &[1, 1], "a", 20).violates(Kind::RanTwice);
    Script::default().append(1, &[1], "a", 10).append(1, &[1], "b", 20).violates(Kind::RanTwice);
    Script::default().unknown(1).append(2, &[1, 1, 2], "a", 20).violates(Kind::RanTwice);
}

#[test]
fn a_lost_write_is_found() {
    let lost = || Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "a", 20);
    lost().append(3, &[1, 3], "b", 30).violates(Kind::LostWrite);
    lost().append(3, &[3], "b", 30).violates(Kind::LostWrite);
}

#[test]
fn a_loss_that_the_session_names_is_correct() {
    let before = || Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "a", 20);
    before().said(3, &[1, 3], "b", 30, Said::WentBack).assert_correct();
    before()
        .append(3, &[1, 3], "b", 30)
        .call(show(), Outcome::Said(Said::WentBack))
        .assert_correct();
    before()
        .call(show(), Outcome::Said(Said::WentBack))
        .append(3, &[1, 3], "b", 30)
        .assert_correct();
}

#[test]
fn a_kernel_that_died_does_not_excuse_lost_files() {
    let before = Script::default().append(1, &[1], "a", 10);
    let mut after = state(&[2], "a", 20, Said::LostKernel);
    after.file = vec![1, 2];
    before.call(append(2), Outcome::State(after)).assert_correct();
    let before = Script::default().append(1, &[1], "a", 10);
    before.said(2, &[2], "a", 20, Said::LostKernel).violates(Kind::LostWrite);
}

#[test]
fn an_earlier_statement_does_not_excuse_a_later_loss() {
    let script = Script::default().append(1, &[1], "a", 10).said(2, &[2], "b", 20, Said::WentBack);
    script.append(3, &[2, 3], "b", 30).append(4, &[2, 4], "c", 40).violates(Kind::LostWrite);
}

#[test]
fn what_was_lost_does_not_return() {
    let script = Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "a", 20);
    let script = script.said(3, &[1, 3], "b", 30, Said::WentBack);
    script.said(4, &[1, 2, 4], "c", 40, Said::WentBack).assert_correct();
    let script = Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "a", 20);
    script.said(3, &[2, 1, 3], "b", 30, Said::WentBack).violates(Kind::Order);
}

#[test]
fn two_sandboxes_at_a_time_are_found() {
    Script::default()
        .append(1, &[1], "a", 10)
        .append(2, &[1, 2], "b", 12)
        .violates(Kind::TwoOwners);
    let back = Script::default().append(1, &[1], "a", 10).append(2, &[1, 2], "b", 20);
    back.append(3, &[1, 2, 3], "a", 30).violates(Kind::TwoOwners);
}

#[test]
fn the_order_of_requests_is_kept() {
    Script::default().append(1, &[1], "a", 50).append(2, &[2], "a", 20).violates(Kind::Order);
}

#[test]
fn an_execution_counts_from_its_first_request() {
    let script = Script::default().unknown(2).append(1, &[2, 1], "a", 20);
    script.append(2, &[2], "a", 10).assert_correct();
}

#[test]
fn a_refused_execution_did_not_run() {
    let refused = Outcome::Refused { status: 503, code: "unavailable".into() };
    let script = Script::default().append(1, &[1], "a", 10).call(append(2), refused.clone());
    script.append(3, &[1, 2, 3], "a", 30).violates(Kind::Invented);
    let script = Script::default().call(append(2), refused).append(2, &[2], "a", 30);
    script.assert_correct();
    Script::default().append(1, &[9, 1], "a", 10).violates(Kind::Invented);
}

#[test]
fn a_fork_has_what_its_parent_had() {
    let fork = || Op::Fork { session: "s".into(), child: "t".into() };
    let in_fork = |number| Op::Append { session: "t".into(), number };
    let script = || Script::default().append(1, &[1], "a", 10).call(fork(), Outcome::Done);
    let seen = |list: &[u64]| Outcome::State(state(list, "b", 20, Said::Kept));
    script().call(in_fork(2), seen(&[1, 2])).assert_correct();
    script().call(in_fork(2), seen(&[2])).violates(Kind::LostWrite);
    script().call(in_fork(2), seen(&[1, 7, 2])).violates(Kind::Invented);
    script()
        .call(in_fork(2), seen(&[1, 2]))
        .append(3, &[1, 2, 3], "a", 30)
        .violates(Kind::Invented);
}

#[test]
fn an_artifact_keeps_its_content() {
    let stored = |sum: &str| Outcome::Artifact { id: "art".into(), sha256: sum.into() };
    let publish = || Op::Publish { session: "s".into(), number: 1 };
    let fetch = || Op::Fetch { artifact: "art".into() };
    let script = || Script::default().call(publish(), stored("one"));
    let away = |status| Outcome::Refused { status, code: "x".into() };
    script().call(fetch(), stored("one")).call(fetch(), away(503)).assert_correct();
    script().call(fetch(), stored("two")).violates(Kind::WrongArtifact);
    script().call(fetch(), away(404)).violates(Kind::WrongArtifact);
}

#[test]
fn a_run_computes() {
    Script::default().call(Op::Run { number: 4 }, Outcome::Number(8)).assert_correct();
    Script::default().call(Op::Run { number: 4 }, Outcome::Number(9)).violates(Kind::WrongResult);
}

#[test]
fn a_missing_answer_is_found_unless_its_gateway_was_faulty() {
    let mut silent = Script::default();
    silent.invoke(show());
    silent.violates(Kind::Late);
    let mut faulty = Script::default();
    faulty.at(Event::FaultBegins { fault: 1, kind: "kill".into(), target: "gateway-0".into() });
    faulty.invoke(show());
    faulty.at(Event::FaultEnds { fault: 1 });
    faulty.assert_correct();
    let mut other = Script::default();
    other.at(Event::FaultBegins { fault: 1, kind: "kill".into(), target: "gateway-1".into() });
    other.invoke(show());
    other.violates(Kind::Late);
}

#[test]
fn a_late_answer_is_found() {
    let mut late = Script::default();
    let call = late.invoke(show());
    late.complete(call, Outcome::Done);
    late.entries[1].at += 31_000_000;
    late.violates(Kind::Late);
}

#[test]
fn a_session_that_ends_gives_a_reason() {
    let ended = |because: &str| Outcome::Ended { because: because.into() };
    let before = || Script::default().append(1, &[1], "a", 10);
    before().call(append(2), ended("its node was lost")).assert_correct();
    before().call(append(2), ended("")).violates(Kind::LostSession);
    before().call(stop(), Outcome::Done).call(append(2), ended("")).assert_correct();
    let lost = before().call(append(2), ended("its node was lost"));
    lost.append(3, &[1, 3], "b", 30).violates(Kind::LostSession);
    let read = before().call(append(2), ended("its node was lost"));
    read.append(1, &[1], "a", 10).assert_correct();
}
