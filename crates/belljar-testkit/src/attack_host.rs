//! The host that the attacks try to reach; see `host.py`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct AttackHost {
    /// A secret that must never be seen inside.
    pub canary: String,
    /// Environment variables that the attacks get.
    pub env: Vec<(String, String)>,
    process: Child,
}

impl AttackHost {
    pub fn start() -> AttackHost {
        let canary = belljar_sys::process::random_name();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/security/host.py");
        let mut process = Command::new("python3")
            .arg(script)
            .arg(&canary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut line = String::new();
        let output = process.stdout.take().expect("it was piped");
        BufReader::new(output).read_line(&mut line).expect("the host speaks");
        let mut env: BTreeMap<String, String> =
            serde_json::from_str(&line).expect("the host prints what it has");
        let landlock = belljar_sys::landlock::generation().unwrap_or(0);
        env.insert("HOST_LANDLOCK".into(), landlock.to_string());
        AttackHost { canary, env: env.into_iter().collect(), process }
    }
}

impl Drop for AttackHost {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
