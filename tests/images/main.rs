//! Images as their users meet them: imported, pulled from a real registry, built from packages, and
//! used by sandboxes.

mod build;
#[path = "../cli/context.rs"]
#[allow(dead_code, reason = "shared with the tests of the command line, which use more of it")]
mod context;
#[path = "../leaks/corner.rs"]
#[allow(dead_code, reason = "as above")]
mod corner;
mod fixture;
#[path = "../security/host.rs"]
mod host;
mod hostile;
mod import;
mod pull;
mod registry;
#[path = "../cli/served.rs"]
#[allow(dead_code, reason = "as above")]
mod served;
mod sessions;
