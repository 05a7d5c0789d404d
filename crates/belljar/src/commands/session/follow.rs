//! An execution followed to its end, over as many connections and servers as it takes.
//!
//! ```text
//!            POST .../exec                      GET .../execs/{exec}/events?offset=
//!   Ask ───────────────────▶ hearing ──▶ lost ─────────────────────────────▶ hearing ──▶ ...
//!    ▲                          │
//!    └──── lost, not heard ─────┘
//! ```
//!
//! The execution's id is chosen here, so asking again for one that a server may or may not have
//! heard of executes it once. Every event says where to go on after it, so nothing is shown twice
//! and nothing is left out.

use reqwest::Method;
use serde_json::Value;

use crate::client::{Client, ClientError, Events, ServerEvent, escape};
use crate::commands::outage::Outage;
use crate::commands::output;

pub(in crate::commands) struct Follower<'a> {
    client: &'a Client,
    session: &'a str,
    exec: &'a str,
    /// What to execute, until the server is known to have accepted it.
    ask: Option<&'a Value>,
    position: u64,
    events: Option<Events>,
    outage: Outage,
    /// What is to be said of outages.
    say: fn(&str),
}

impl<'a> Follower<'a> {
    /// Starts an execution and follows it; without anything to ask, joins one that was started.
    pub(in crate::commands) fn new(
        client: &'a Client,
        session: &'a str,
        exec: &'a str,
        ask: Option<&'a Value>,
    ) -> Follower<'a> {
        Follower {
            client,
            session,
            exec,
            ask,
            position: 0,
            events: None,
            outage: Outage::default(),
            say: output::say,
        }
    }

    /// Says nothing of outages, where only what was executed is to be heard.
    pub(in crate::commands) fn quiet(self) -> Follower<'a> {
        Follower { say: |_| (), ..self }
    }

    /// Whether the server is known to have begun it.
    pub(in crate::commands) fn is_accepted(&self) -> bool {
        self.ask.is_none()
    }

    /// The next event, whatever it takes. Nothing is lost by not waiting for it.
    pub(in crate::commands) async fn next(&mut self) -> Result<ServerEvent, ClientError> {
        loop {
            match self.try_next().await {
                Ok(heard) => {
                    self.outage.is_over(self.say);
                    return Ok(heard);
                }
                Err(error) => {
                    self.events = None;
                    self.outage.endure(error, self.say).await?;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<ServerEvent, ClientError> {
        let events = match &mut self.events {
            Some(events) => events,
            None => {
                let events = self.open().await?;
                self.events.insert(events)
            }
        };
        let Some(heard) = events.next().await? else {
            return Err(ClientError::CutOff { url: self.client.url() });
        };
        self.ask = None;
        self.position = heard.position.unwrap_or(self.position);
        Ok(heard)
    }

    async fn open(&self) -> Result<Events, ClientError> {
        let session = format!("/v1/sessions/{}", escape(self.session));
        match self.ask {
            Some(_) => self.client.events(Method::POST, &format!("{session}/exec"), self.ask).await,
            None => {
                let (exec, offset) = (escape(self.exec), self.position);
                let path = format!("{session}/execs/{exec}/events?offset={offset}");
                self.client.events(Method::GET, &path, None).await
            }
        }
    }
}
