//! What clients asked and what they got, in the order in which it happened, also in a file.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Something that a client asks of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Create {
        session: String,
    },
    /// Appends a number that is used only once to the session's list and file, and returns both.
    Append {
        session: String,
        number: u64,
    },
    Hibernate {
        session: String,
    },
    /// `child` is a name that the test gives; the session gets it when the fork succeeds.
    Fork {
        session: String,
        child: String,
    },
    /// What the session says about itself.
    Show {
        session: String,
    },
    Stop {
        session: String,
    },
    /// A run outside of sessions that computes `number * 2`.
    Run {
        number: u64,
    },
    /// Writes an artifact with this content.
    Publish {
        session: String,
        number: u64,
    },
    Fetch {
        artifact: String,
    },
}

impl Op {
    pub(crate) fn session(&self) -> Option<&str> {
        match self {
            Op::Create { session }
            | Op::Append { session, .. }
            | Op::Hibernate { session }
            | Op::Fork { session, .. }
            | Op::Show { session }
            | Op::Stop { session }
            | Op::Publish { session, .. } => Some(session),
            Op::Run { .. } | Op::Fetch { .. } => None,
        }
    }
}

/// What a session said about its state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// Nothing was lost.
    #[default]
    Kept,
    /// The variables of the kernel were lost; files were kept.
    LostKernel,
    /// It continued from an earlier snapshot.
    WentBack,
    /// The session was lost and has ended.
    Lost,
}

/// The state of a session as an execution in it saw it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) list: Vec<u64>,
    pub(crate) file: Vec<u64>,
    /// Differs for each sandbox.
    pub(crate) sandbox: String,
    /// When the execution began and ended, by the monotonic clock of the machine, read inside of the sandbox.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) said: Said,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Done,
    State(State),
    Said(Said),
    /// The artifact and the SHA-256 sum of its content.
    Artifact {
        id: String,
        sha256: String,
    },
    Number(u64),
    /// It was refused and has changed nothing.
    Refused {
        status: u16,
        code: String,
    },
    /// The session has ended; `said` is what it gives as the reason.
    Ended {
        because: String,
    },
    /// An answer is missing, or does not say whether it happened.
    Unknown {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Invoke { call: u64, gateway: usize, op: Op },
    Complete { call: u64, outcome: Outcome },
    FaultBegins { fault: u64, kind: String, target: String },
    FaultEnds { fault: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Microseconds since the beginning.
    pub(crate) at: u64,
    pub(crate) event: Event,
}

/// Collects events from many tasks.
pub(crate) struct Recorder {
    begun: Instant,
    inner: Mutex<(Vec<Entry>, BufWriter<File>, u64)>,
}

impl Recorder {
    pub(crate) fn new(path: &Path) -> Recorder {
        let file = BufWriter::new(File::create(path).expect("a file"));
        Recorder { begun: Instant::now(), inner: Mutex::new((Vec::new(), file, 0)) }
    }

    /// Records that a request is about to be sent; returns the number of the call.
    pub(crate) fn invoke(&self, gateway: usize, op: Op) -> u64 {
        self.add(|call| Event::Invoke { call, gateway, op })
    }

    pub(crate) fn complete(&self, call: u64, outcome: Outcome) {
        self.add(|_| Event::Complete { call, outcome });
    }

    pub(crate) fn fault_begins(&self, kind: &str, target: &str) -> u64 {
        let (kind, target) = (kind.to_owned(), target.to_owned());
        self.add(|fault| Event::FaultBegins { fault, kind, target })
    }

    pub(crate) fn fault_ends(&self, fault: u64) {
        self.add(|_| Event::FaultEnds { fault });
    }

    fn add(&self, event: impl FnOnce(u64) -> Event) -> u64 {
        let mut inner = self.inner.lock().expect("not poisoned");
        inner.2 += 1;
        let number = inner.2;
        // The time is taken under the lock, so that entries are in its order.
        let at = u64::try_from(self.begun.elapsed().as_micros()).expect("a short test");
        let entry = Entry { at, event: event(number) };
        serde_json::to_writer(&mut inner.1, &entry).expect("a history");
        inner.1.write_all(b"\n").expect("a history");
        inner.0.push(entry);
        number
    }

    /// Everything so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut inner = self.inner.lock().expect("not poisoned");
        inner.1.flush().expect("a history");
        inner.0.clone()
    }
}
