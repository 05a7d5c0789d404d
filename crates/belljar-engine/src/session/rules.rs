//! What may happen to a session when: plain code without I/O, tested for every pair.

pub use crate::store::Phase;

/// What somebody asks of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Exec,
    /// Interrupt, feed, or look into what is there.
    Attend,
    /// Keep it longer.
    Extend,
    Stop,
    /// Begin again on the files of a session that has ended.
    Start,
}

/// What happens to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    SandboxReady,
    SandboxFailed,
    /// The first of several executions began, or the last of them ended.
    WorkBegan,
    WorkEnded,
    /// The sandbox ended although nobody asked for it.
    SandboxLost,
    StopAsked,
    SandboxGone,
    StartAsked,
    /// It is put aside; and it is not, or was taken out again, all in one.
    RestBegan,
    RestEnded,
    /// Nothing but files is left of it.
    SandboxAsleep,
    WakeBegan,
}

/// Why a request cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is on its way out; there will be no later.
    Ending,
    /// It has ended.
    Ended,
    /// It is alive, and only one that has ended can be started.
    Alive,
    /// Its sandbox is taken away at this moment.
    Resting,
}

/// Whether a request can be served in this phase, now or after waiting a little.
pub fn allows(phase: Phase, request: Request) -> Result<(), Refusal> {
    use {Phase::*, Request::*};
    match (phase, request) {
        (
            Creating | Ready | Busy | Hibernating | Hibernated | Waking,
            Exec | Attend | Extend | Stop,
        ) => Ok(()),
        (Creating | Ready | Busy | Hibernating | Hibernated | Waking, Start) => Err(Refusal::Alive),
        // Asked twice, it is still stopped once.
        (Stopping | Stopped | Failed, Stop) => Ok(()),
        (Stopping, Exec | Attend | Extend | Start) => Err(Refusal::Ending),
        (Stopped | Failed, Start) => Ok(()),
        (Stopped | Failed, Exec | Attend | Extend) => Err(Refusal::Ended),
    }
}

/// The phase that follows, or `None` if this cannot happen here.
#[must_use]
pub fn next(phase: Phase, happening: Happening) -> Option<Phase> {
    use {Happening::*, Phase::*};
    match (phase, happening) {
        (Creating | Waking, SandboxReady) => Some(Ready),
        (Creating, SandboxFailed) => Some(Failed),
        (Ready, WorkBegan) => Some(Busy),
        (Busy, WorkEnded) => Some(Ready),
        (Ready, RestBegan) => Some(Hibernating),
        (Hibernating, RestEnded) => Some(Ready),
        // One that could not be woken goes on sleeping; one that an earlier server put to sleep, or
        // that begins as a branch of another, was never awake here.
        (Creating | Hibernating | Waking, SandboxAsleep) => Some(Hibernated),
        (Hibernated, WakeBegan) => Some(Waking),
        (Ready | Busy | Hibernating | Hibernated, SandboxLost) => Some(Failed),
        (Creating | Ready | Busy | Hibernating | Hibernated | Waking, StopAsked) => Some(Stopping),
        // While it stops its work ends, as it may, and its sandbox may be faster than we.
        (Stopping, WorkEnded | SandboxLost | SandboxReady | SandboxFailed) => Some(Stopping),
        (Stopping, SandboxGone) => Some(Stopped),
        (Stopped | Failed, StartAsked) => Some(Creating),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const REQUESTS: [Request; 5] =
        [Request::Exec, Request::Attend, Request::Extend, Request::Stop, Request::Start];

    const HAPPENINGS: [Happening; 12] = [
        Happening::SandboxReady,
        Happening::SandboxFailed,
        Happening::WorkBegan,
        Happening::WorkEnded,
        Happening::SandboxLost,
        Happening::StopAsked,
        Happening::SandboxGone,
        Happening::StartAsked,
        Happening::RestBegan,
        Happening::RestEnded,
        Happening::SandboxAsleep,
        Happening::WakeBegan,
    ];

    /// All of the rules on one page; a change of any shows up in review.
    #[test]
    fn every_pair() {
        let mut page = String::new();
        for phase in Phase::ALL {
            for request in REQUESTS {
                let answer = match allows(phase, request) {
                    Ok(()) => "yes".to_owned(),
                    Err(refusal) => format!("no: {refusal:?}"),
                };
                writeln!(page, "{:<12} may {request:?}? {answer}", phase.name()).unwrap();
            }
            for happening in HAPPENINGS {
                if let Some(after) = next(phase, happening) {
                    writeln!(page, "{:<12} --{happening:?}--> {}", phase.name(), after.name())
                        .unwrap();
                }
            }
        }
        insta::assert_snapshot!(page);
    }

    #[test]
    fn every_live_phase_can_be_stopped_and_every_ended_one_started() {
        for phase in Phase::ALL {
            assert_eq!(allows(phase, Request::Stop), Ok(()), "{phase:?}");
            assert_eq!(phase.is_over(), next(phase, Happening::StartAsked).is_some(), "{phase:?}");
            let stoppable = !phase.is_over() && phase != Phase::Stopping;
            assert_eq!(stoppable, next(phase, Happening::StopAsked).is_some(), "{phase:?}");
        }
    }

    #[test]
    fn an_end_is_reached_from_everywhere() {
        for start in Phase::ALL {
            let mut reached = vec![start];
            for _ in 0..Phase::ALL.len() {
                for phase in reached.clone() {
                    reached
                        .extend(HAPPENINGS.iter().filter_map(|happening| next(phase, *happening)));
                }
                reached.sort();
                reached.dedup();
            }
            assert!(reached.contains(&Phase::Stopped) || start.is_over(), "{start:?}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(phase.name()), Some(phase));
        }
        assert_eq!(Phase::parse("gone"), None);
    }
}
