//! Follows an execution to its end; reconnects when the connection or the server is lost.
//!
//! ```text
//!            POST .../exec                      GET .../execs/{exec}/events?offset=
//!   start ─────────────────▶ events ──▶ lost ──────────────────────────────▶ events ──▶ ...
//!    ▲                         │
//!    └──── lost, no event ─────┘
//! ```
//!
//! The client chooses the execution's id, so repeating the request executes the code only once. Every event has the offset
//! of the next one, so no event is shown twice and none is left out.

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
    /// Reports outages.
    say: fn(&str),
}

impl<'a> Follower<'a> {
    /// Starts an execution and follows it; without `ask`, follows one that was started before.
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

    /// Does not report outages.
    pub(in crate::commands) fn quiet(self) -> Follower<'a> {
        Follower { say: |_| (), ..self }
    }

    /// Whether the server has accepted the execution.
    pub(in crate::commands) fn is_accepted(&self) -> bool {
        self.ask.is_none()
    }

    /// The next event; reconnects if needed. Cancel-safe.
    pub(in crate::commands) async fn next(&mut self) -> Result<ServerEvent, ClientError> {
        loop {
            match self.try_next().await {
                Ok(event) => {
                    self.outage.is_over(self.say);
                    return Ok(event);
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
        let Some(event) = events.next().await? else {
            return Err(ClientError::CutOff { url: self.client.url() });
        };
        self.ask = None;
        self.position = event.position.unwrap_or(self.position);
        Ok(event)
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
