//! Images from the user's side: imported, pulled from a real registry, built from packages, and used by sandboxes.

mod build;
mod fixture;
mod hostile;
mod import;
mod pull;
mod registry;
mod sessions;
