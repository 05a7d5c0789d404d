//! Joins each request with its answer.

use std::collections::HashMap;

use crate::history::{Entry, Event, Op, Outcome};

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) op: Op,
    pub(super) outcome: Outcome,
    /// Microseconds since the beginning.
    pub(super) invoked: u64,
    /// None: no answer until the end of the history.
    pub(super) completed: Option<u64>,
    /// Its gateway had a fault while the call lasted.
    pub(super) gateway_is_faulty: bool,
}

/// All calls, in the order in which they were invoked.
pub(super) fn pair(history: &[Entry]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut by_number: HashMap<u64, (usize, usize)> = HashMap::new();
    let faults = gateway_faults(history);
    for entry in history {
        match &entry.event {
            Event::Invoke { call, gateway, op } => {
                by_number.insert(*call, (calls.len(), *gateway));
                let outcome = Outcome::Unknown { why: "no answer".to_owned() };
                calls.push(Call {
                    op: op.clone(),
                    outcome,
                    invoked: entry.at,
                    completed: None,
                    gateway_is_faulty: false,
                });
            }
            Event::Complete { call, outcome } => {
                let Some((at, _)) = by_number.get(call) else { continue };
                calls[*at].outcome = outcome.clone();
                calls[*at].completed = Some(entry.at);
            }
            Event::FaultBegins { .. } | Event::FaultEnds { .. } => {}
        }
    }
    for (at, gateway) in by_number.into_values() {
        let call = &mut calls[at];
        let until = call.completed.unwrap_or(u64::MAX);
        call.gateway_is_faulty = faults.iter().any(|(target, begin, end)| {
            *target == format!("gateway-{gateway}") && *begin <= until && *end >= call.invoked
        });
    }
    calls
}

/// The faults of gateways: target, begin and end.
fn gateway_faults(history: &[Entry]) -> Vec<(String, u64, u64)> {
    let mut faults: HashMap<u64, (String, u64, u64)> = HashMap::new();
    for entry in history {
        match &entry.event {
            Event::FaultBegins { fault, target, .. } => {
                faults.insert(*fault, (target.clone(), entry.at, u64::MAX));
            }
            Event::FaultEnds { fault } => {
                if let Some(known) = faults.get_mut(fault) {
                    known.2 = entry.at;
                }
            }
            Event::Invoke { .. } | Event::Complete { .. } => {}
        }
    }
    faults.into_values().collect()
}
