//! A session as a client sees it, and executions whose result is awaited.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::values::text;
use crate::wait::{PATIENCE, eventually};

impl Client {
    pub async fn session_with(&self, ask: Value) -> Session {
        let made = self.post("/v1/sessions", ask).await.json(201);
        Session::of(self, text(&made["id"]))
    }
}

/// A session, seen from outside.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub id: String,
}

/// Runs until there is a file `/session/go`.
pub const HOLD: &str = "\
import os, time
print('holding', flush=True)
while not os.path.exists('/session/go'):
    time.sleep(0.01)
print('released')";

impl Session {
    pub fn of(client: &Client, id: &str) -> Session {
        Session { client: client.clone(), id: id.to_owned() }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    pub async fn show(&self) -> Value {
        self.client.get(&self.path("")).await.json(200)
    }

    pub async fn exec(&self, ask: Value) -> Answer {
        self.client.post(&self.path("/exec"), ask).await
    }

    /// The result of a cell.
    pub async fn python(&self, code: &str) -> Value {
        self.exec(json!({"code": code})).await.json(200)
    }

    /// Runs a cell that must succeed, and returns its output.
    pub async fn printed(&self, code: &str) -> String {
        let result = self.python(code).await;
        assert_eq!(result["status"], "ok", "{result:#}");
        text(&result["stdout"]).to_owned()
    }

    /// The result of a shell command beside the kernels.
    pub async fn shell(&self, command: &str) -> Value {
        self.exec(json!({"command": command})).await.json(200)
    }

    /// Starts an execution and waits until it is in this state.
    pub async fn begin(&self, exec_id: &str, state: &str, mut ask: Value) -> Pending {
        ask["exec_id"] = exec_id.into();
        let session = self.clone();
        let answer = tokio::spawn(async move { session.exec(ask).await });
        let pending = Pending { answer };
        self.reaches(exec_id, state).await;
        pending
    }

    /// Starts a cell that runs until it is released; see [`HOLD`].
    pub async fn hold(&self, exec_id: &str) -> Pending {
        let pending = self.begin(exec_id, "running", json!({"code": HOLD})).await;
        self.has_printed(exec_id, "holding").await;
        pending
    }

    /// Waits until an execution has printed this on its standard output.
    pub async fn has_printed(&self, exec_id: &str, text: &str) {
        let path = self.path(&format!("/execs/{exec_id}/events"));
        let mut events = self.client.follow(&path).await;
        let mut seen = String::new();
        while !seen.contains(text) {
            let event = events.next().await.expect("it goes on");
            assert_ne!(event.name, "done", "it never said {text:?} but {seen:?}: {event:?}");
            seen += event.data["text"].as_str().unwrap_or_default();
        }
    }

    /// Lets code that waits in [`HOLD`] continue.
    pub async fn release(&self) {
        let touched = self.shell("touch /session/go").await;
        assert_eq!(touched["status"], "ok", "{touched:#}");
    }

    pub async fn exec_info(&self, exec_id: &str) -> Value {
        self.client.get(&self.path(&format!("/execs/{exec_id}"))).await.json(200)
    }

    /// Waits until an execution is in this state: queued, running or finished.
    pub async fn reaches(&self, exec_id: &str, state: &str) {
        let path = self.path(&format!("/execs/{exec_id}"));
        eventually(&format!("{exec_id} is {state}"), async || {
            let answer = self.client.get(&path).await;
            answer.status == 200 && answer.json(200)["state"] == state
        })
        .await;
    }

    /// Waits until the session is in this state.
    pub async fn becomes(&self, state: &str) -> Value {
        eventually(&format!("the session is {state}"), async || {
            self.show().await["state"] == state
        })
        .await;
        self.show().await
    }

    pub async fn stop(&self) -> Value {
        self.client.delete(&self.path("")).await.json(200)
    }
}

/// An execution whose answer is awaited.
pub struct Pending {
    answer: tokio::task::JoinHandle<Answer>,
}

impl Pending {
    pub async fn answer(self) -> Answer {
        tokio::time::timeout(PATIENCE, self.answer).await.expect("an answer").expect("no panic")
    }

    pub async fn result(self) -> Value {
        self.answer().await.json(200)
    }

    /// Gives up without waiting for the answer.
    pub fn abandon(self) {
        self.answer.abort();
    }
}
