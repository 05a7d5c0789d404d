//! Datasets: what code in a session works on. [`source`] is where the server fetches them from.

pub mod source;
