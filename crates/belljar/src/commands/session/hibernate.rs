//! `belljar session hibernate`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::{find_id, print_json};
use crate::cli::SessionHibernateArgs;
use crate::client::Client;
use crate::commands::output;

pub(super) async fn hibernate(client: &Client, args: &SessionHibernateArgs) -> Result<ExitCode> {
    let id = find_id(client, &args.session).await?;
    let ask = json!({ "force": args.force });
    let session = client.post(&format!("/v1/sessions/{id}/hibernate"), &ask).await?;
    if args.json {
        print_json(&session)?;
    } else {
        output::print(&format!("{id} sleeps; it wakes when it is used\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
