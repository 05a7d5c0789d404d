//! What the row of a session has about its snapshot in S3: where it is, and how the session got there.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The field of the pointer with what is said to the session's client when it goes on from the snapshot.
const RESUME: &str = "resume";

/// The pointer of [`RemoteSnapshots::upload`](super::RemoteSnapshots::upload), with [`Resume`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SnapshotPointer(Value);

/// The state of a session when its snapshot was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resume {
    /// The session has not been awake since, so nothing is lost.
    pub(crate) clean: bool,
    /// The number of its last execution.
    pub(crate) execs: u64,
    pub(crate) taken_ms: i64,
    /// What was left out, or is not in S3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl SnapshotPointer {
    pub(crate) fn new(uploaded: Value, resume: &Resume) -> SnapshotPointer {
        let mut pointer = SnapshotPointer(uploaded);
        pointer.set_resume(resume);
        pointer
    }

    pub(crate) fn stored(value: Value) -> SnapshotPointer {
        SnapshotPointer(value)
    }

    pub(crate) fn value(&self) -> &Value {
        &self.0
    }

    pub(crate) fn resume(&self) -> Resume {
        self.0.get(RESUME).and_then(|resume| Resume::deserialize(resume).ok()).unwrap_or_default()
    }

    /// The same snapshot, of a session that has not been awake since.
    pub(crate) fn clean(mut self) -> SnapshotPointer {
        let resume = Resume { clean: true, ..self.resume() };
        self.set_resume(&resume);
        self
    }

    /// The same snapshot, of a session that has been awake since.
    pub(crate) fn unclean(mut self) -> SnapshotPointer {
        let resume = Resume { clean: false, ..self.resume() };
        self.set_resume(&resume);
        self
    }

    /// The same snapshot. This node keeps its files as a cache, so a gateway prefers it.
    pub(crate) fn kept_on(mut self, node: &str) -> SnapshotPointer {
        if let Value::Object(fields) = &mut self.0 {
            fields.insert("node".to_owned(), node.into());
        }
        self
    }

    fn set_resume(&mut self, resume: &Resume) {
        if let (Value::Object(fields), Ok(resume)) = (&mut self.0, serde_json::to_value(resume)) {
            fields.insert(RESUME.to_owned(), resume);
        }
    }

    /// Each upload of the session has a higher number, on all nodes together. So an earlier owner never removes objects of a
    /// later one, and a late write never replaces a later pointer.
    pub(crate) fn number(&self) -> i64 {
        self.0.get("number").and_then(Value::as_i64).unwrap_or(0)
    }

    /// The class of nodes that can restore its memory.
    pub(crate) fn class(&self) -> Option<&str> {
        self.0.get("class")?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_keeps_what_is_said_when_the_session_goes_on() {
        let resume = Resume { clean: true, execs: 3, taken_ms: 7, notes: vec!["a".into()] };
        let pointer = SnapshotPointer::new(json!({"number": 4, "class": "x"}), &resume);
        assert_eq!((pointer.number(), pointer.class()), (4, Some("x")));
        let stored = SnapshotPointer::stored(pointer.value().clone());
        assert_eq!(stored.resume(), resume);
        let awake = stored.unclean();
        assert_eq!(awake.resume(), Resume { clean: false, ..resume });
        assert_eq!(awake.value()["number"], 4);
        assert_eq!(awake.kept_on("a").value()["node"], "a");
        // Without the field, the session may have been awake since.
        assert!(!SnapshotPointer::stored(json!({})).resume().clean);
    }
}
