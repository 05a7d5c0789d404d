//! A cluster of real processes: nodes, gateways, Postgres and S3, each in its own network namespace, and faults.

mod checker;
mod faults;
mod history;
mod random;
mod workload;
