//! The attacks of `tests/security`, run in a container. The attacks that the engine does not stop
//! are listed here, with the reason why they do no harm.

use std::fs;
use std::path::PathBuf;

use belljar_testkit::attack::{Attack, Outcome};
use belljar_testkit::attack_host::AttackHost;
use serde_json::{Value, json};

use crate::backend::Backend;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

/// Attacks that succeed in a container, and why we accept that. THREAT-MODEL.md says the same to operators.
const BORNE: [(&str, &str); 7] = [
    ("cgroup_write", "engines show a container its own control group; it is read-only"),
    ("limit_ptys", "engines set no limit; the machine's own is shared"),
    ("mount_flags", "engines mount without nosuid; no_new_privs makes set-user-id files harmless"),
    ("mount_overlay_paths", "engines' storage shows where it is; nothing there can be reached"),
    ("namespace_uid_range", "engines map users to themselves, unless they remap (userns-remap)"),
    ("privilege_setuid_search", "images have such files; no_new_privs makes them harmless"),
    ("sys_presence", "engines mount /sys; all but the sandbox's own counters is masked"),
];

fn is_borne(attack: &Attack) -> bool {
    BORNE.iter().any(|(name, _)| *name == attack.name)
}

/// Attacks that need their own sandbox: they end it, exhaust it, or search for leftovers.
fn wants_its_own(attack: &Attack) -> bool {
    let name = attack.name.as_str();
    // This attack only reads.
    if name == "control_sockets_inside" {
        return false;
    }
    !attack.flags.is_empty()
        || attack.repeat > 1
        || ["limit_", "residue_", "artifact_", "crash_", "control_"]
            .iter()
            .any(|kind| name.starts_with(kind))
        || ["process_kill_everyone", "process_kill_init", "process_stop_everyone"].contains(&name)
}

/// Runs the attack in a kernel of the session, as an agent's code would run. Each attack gets a fresh kernel.
async fn attack_session(
    session: &Session,
    attack: &Attack,
    host: &AttackHost,
    outputs: PathBuf,
) -> Outcome {
    let env: serde_json::Map<String, Value> =
        host.env.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let code = fs::read_to_string(&attack.path).expect("an attack is text");
    let result = session.exec(json!({"code": code, "env": env, "timeout": 15})).await.json(200);
    session.python("import os; os._exit(0)").await;
    let traceback = result["error"]["traceback"].as_str().unwrap_or_default();
    let ok = result["status"] == "ok";
    Outcome {
        status: serde_json::from_value(result["status"].clone()).expect("a status"),
        exit_code: if ok { 0 } else { 1 },
        stdout: text(&result["stdout"]).to_owned(),
        stderr: text(&result["stderr"]).to_owned() + traceback,
        outputs,
    }
}

async fn fails(server: &Server, attacks: &[Attack], host: &AttackHost) -> Vec<String> {
    let mut failures = Vec::new();
    let mut session = server.session().await;
    for attack in attacks {
        let outcome = attack_session(&session, attack, host, server.path("outputs")).await;
        if let Err(why) = attack.judge(&[outcome], &host.canary) {
            failures.push(format!("{}: {why}", attack.name));
        }
        let state = session.show().await["state"].clone();
        if state != "ready" {
            failures.push(format!("{}: the session is {state}", attack.name));
            session = server.session().await;
        }
    }
    failures
}

#[tokio::test]
async fn attacks_from_inside_a_container_are_contained() {
    let Some(on) = Backend::Docker.if_available() else { return };
    let host = AttackHost::start();
    let site = on.site(&[("BELLJAR_TEST_SECRET", &host.canary)]);
    let server = site.serve().await;
    let (borne, attacks): (Vec<_>, Vec<_>) = Attack::all()
        .into_iter()
        .filter(|attack| attack.path.extension().is_some_and(|end| end == "py"))
        .filter(|attack| is_borne(attack) || !(wants_its_own(attack) || attack.native_only))
        .partition(is_borne);
    assert!(attacks.len() > 100, "{}", attacks.len());
    let failures = fails(&server, &attacks, &host).await;
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // An attack that is stopped now must be removed from the list.
    let still = fails(&server, &borne, &host).await;
    assert_eq!(still.len(), borne.len(), "one holds now: {still:#?}");
}
