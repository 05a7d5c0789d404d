//! The `belljar` command from the user's side: the real binary, real sandboxes, complete outputs.

mod artifacts;
mod artifacts_commands;
mod code;
mod cp;
mod datasets;
mod documents;
mod endings;
mod flags;
mod interruptions;
mod keys;
mod machine;
mod network;
mod notebooks;
mod operate;
mod output;
mod postgres;
mod scripts;
mod servers;
mod sessions;
mod settings;
mod shell;
mod timeouts;
mod usage;
mod view;
mod volumes;
mod workspaces;
