//! Tickets: single-use tokens that open a terminal of one session without an API key. They are for pages in browsers,
//! which cannot send a key with a WebSocket and should not have one.
//!
//! A ticket is random, and only its hash is kept, in memory. It becomes invalid when it is used, after [`TICKET_LIFE`],
//! when the key that requested it is revoked, and when the server ends.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_sys::process;
use sha2::{Digest, Sha256};

use crate::lock;
use crate::principal::Principal;

/// How long a ticket is valid.
pub const TICKET_LIFE: Duration = Duration::from_secs(60);

/// Unused tickets of one tenant.
const MAX_TICKETS: usize = 256;

#[derive(Debug, Default)]
pub struct Tickets(Mutex<HashMap<[u8; 32], Ticket>>);

#[derive(Debug)]
struct Ticket {
    who: Principal,
    session: String,
    issued: Instant,
}

impl Tickets {
    /// Issues a ticket for a session; `None` if this tenant has too many unused ones.
    pub fn issue(&self, who: &Principal, session: &str, now: Instant) -> Option<String> {
        let mut tickets = lock(&self.0);
        tickets.retain(|_, ticket| is_valid(ticket, now));
        if tickets.values().filter(|ticket| ticket.who.tenant == who.tenant).count() >= MAX_TICKETS
        {
            return None;
        }
        let secret = format!("{}{}", process::random_name(), process::random_name());
        let ticket = Ticket { who: who.clone(), session: session.to_owned(), issued: now };
        tickets.insert(hash(&secret), ticket);
        Some(secret)
    }

    /// Redeems a ticket and returns its principal.
    pub fn redeem(&self, secret: &str, session: &str, now: Instant) -> Option<Principal> {
        let ticket = lock(&self.0).remove(&hash(secret))?;
        (is_valid(&ticket, now) && ticket.session == session).then_some(ticket.who)
    }
}

fn is_valid(ticket: &Ticket, now: Instant) -> bool {
    now.saturating_duration_since(ticket.issued) < TICKET_LIFE
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_valid_once_for_a_short_time_and_for_one_session() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        let who = Principal { tenant: "a".into(), ..Principal::default() };
        let issue = || tickets.issue(&who, "ses_1", now).unwrap();
        let ticket = issue();
        assert_eq!(tickets.redeem(&ticket, "ses_1", now), Some(who.clone()));
        assert_eq!(tickets.redeem(&ticket, "ses_1", now), None, "once");
        let ticket = issue();
        assert_eq!(tickets.redeem(&ticket, "ses_2", now), None);
        assert_eq!(
            tickets.redeem(&ticket, "ses_1", now),
            None,
            "a ticket used for another session is gone"
        );
        assert_eq!(tickets.redeem(&issue(), "ses_1", now + TICKET_LIFE), None, "too late");
        assert_eq!(tickets.redeem("", "ses_1", now), None);
        assert_ne!(issue(), issue());
    }

    #[test]
    fn unused_tickets_are_bounded_and_removed() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        let who = |tenant: &str| Principal { tenant: tenant.into(), ..Principal::default() };
        for _ in 0..MAX_TICKETS {
            tickets.issue(&who("a"), "s", now).unwrap();
        }
        assert_eq!(tickets.issue(&who("a"), "s", now), None);
        assert!(tickets.issue(&who("b"), "s", now).is_some(), "others have their own");
        assert!(tickets.issue(&who("a"), "s", now + TICKET_LIFE).is_some());
        assert_eq!(lock(&tickets.0).len(), 1);
    }
}
