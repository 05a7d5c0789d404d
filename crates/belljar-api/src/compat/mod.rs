//! Calls of systems that Belljar replaces; see `README.md` here.

pub(crate) mod simple_sandbox;
