//! Calls of systems that Belljar replaces; see `README.md` in this folder.

pub(crate) mod simple_sandbox;
