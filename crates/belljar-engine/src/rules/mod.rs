//! Which requests a session accepts in which phase, and which phase follows which: plain code without I/O, tested for every pair.

pub use crate::store::Phase;

/// What clients ask of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Exec,
    /// Use the sandbox: interrupt, send input, read files, hibernate.
    Attend,
    /// Extend its life.
    Extend,
    Stop,
    /// Start a session that has ended again, on its files.
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
    /// The sandbox ended by itself.
    SandboxLost,
    StopAsked,
    SandboxGone,
    StartAsked,
    /// The driver took, or released, exclusive use of the sandbox.
    RestBegan,
    RestEnded,
    /// The session is hibernated: only files are left of it.
    SandboxAsleep,
    WakeBegan,
}

/// Why a request cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is being stopped.
    Ending,
    /// It has ended.
    Ended,
    /// It is alive; only a session that has ended can be started.
    Alive,
    /// The driver has exclusive use of its sandbox at this moment.
    Resting,
}

/// Whether a request can be served in this phase, at once or after a short wait.
pub fn allows(phase: Phase, request: Request) -> Result<(), Refusal> {
    use {Phase::*, Request::*};
    match (phase, request) {
        (
            Creating | Ready | Busy | Hibernating | Hibernated | Waking,
            Exec | Attend | Extend | Stop,
        ) => Ok(()),
        (Creating | Ready | Busy | Hibernating | Hibernated | Waking, Start) => Err(Refusal::Alive),
        // A second stop changes nothing.
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
        // that begins as a fork of another, was never awake here.
        (Creating | Hibernating | Waking, SandboxAsleep) => Some(Hibernated),
        (Hibernated, WakeBegan) => Some(Waking),
        (Ready | Busy | Hibernating | Hibernated, SandboxLost) => Some(Failed),
        (Creating | Ready | Busy | Hibernating | Hibernated | Waking, StopAsked) => Some(Stopping),
        // While it stops, its work may end, and its sandbox may end first.
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
