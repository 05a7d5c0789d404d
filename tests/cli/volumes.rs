//! `belljar volume`: files that outlive sessions, from the command line.

use std::ffi::OsStr;

use belljar_runtime::VolumeKind;
use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::Finished;

fn volume<S: AsRef<OsStr>>(served: &CliServer, args: impl IntoIterator<Item = S>) -> Finished {
    served.context().finish(served.context().belljar(["volume"]).args(args))
}

/// The output without the creation time and the used bytes, which the kernel rounds to blocks.
fn steady(finished: &Finished) -> String {
    let lines = finished.to_string();
    let lines = lines.lines().map(|line| match line.split_once("  20") {
        Some((before, _)) if before.starts_with("created") => format!("{before}  [TIME]"),
        _ if line.starts_with("used  ") => "used        [BYTES]".to_owned(),
        _ => line.to_owned(),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    // On a busy machine, time passes between two commands.
    (1..60).fold(text, |text, s| text.replace(&format!(" {s} s ago"), " 0 s ago"))
}

#[test]
fn volumes_are_made_used_and_removed() {
    if VolumeKind::why_no_images().is_some() {
        return;
    }
    let served = CliServer::on_socket();
    assert_snapshot!(volume(&served, ["list"]), @r"
    exit 0
    --- stdout
    --- stderr
    There are no volumes.
    ");
    assert_snapshot!(volume(&served, ["create", "models", "--size", "8M"]), @r"
    exit 0
    --- stdout
    models
    --- stderr
    ");
    assert_snapshot!(volume(&served, ["create", "models"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is a volume `models` already
    ");
    assert_snapshot!(volume(&served, ["create", "../x"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: name: `../x` cannot be the name of a volume: expected 1 to 64 letters, digits, `.`, `_` and `-`, with a letter or digit at its beginning
    ");
    assert_snapshot!(volume(&served, ["create", "small", "--size", "1K"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: size: expected 4 MiB to 16 TiB
    ");
    let id = served.create(&["--volume", "models"]);
    let reader = served.create(&["--volume", "models:ro"]);
    served.ok(["exec", &id, "-c", "open('/volumes/models/a', 'w').write('x' * 100_000)"]);
    assert_eq!(
        served.ok(["exec", &reader, "-c", "len(open('/volumes/models/a').read())"]).stdout(),
        "100000\n"
    );
    let shown = served.ok(["show", &reader]).stdout();
    assert!(shown.contains("volumes     models (ro)\n"), "{shown}");
    served.ok(["stop", &reader]);
    assert_snapshot!(steady(&volume(&served, ["list"])), @r"
    exit 0
    --- stdout
    name    size      quota     used by  created
    ------  --------  --------  -------  -------
    models  8.00 MiB  enforced  1        0 s ago
    --- stderr
    ");
    assert_snapshot!(steady(&volume(&served, ["show", "models"])), @r"
    exit 0
    --- stdout
    name        models
    size        8.00 MiB (8388608 bytes), enforced
    used        [BYTES]
    files       1
    storage     image
    used by     ses_[ID] (rw)
    created     [TIME]
    --- stderr
    ");
    assert_snapshot!(volume(&served, ["remove", "models", "nowhere"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: volume `models` is used by ses_[ID]; stop what uses it first
    belljar: there is no volume `nowhere`; `belljar volume list` shows all
    ");
    served.ok(["stop", &id]);
    assert_snapshot!(volume(&served, ["remove", "models"]), @r"
    exit 0
    --- stdout
    models removed
    --- stderr
    ");
    assert_snapshot!(volume(&served, ["show", "models"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no volume `models`; `belljar volume list` shows all
    ");
    let listed = volume(&served, ["list", "--json"]).json();
    assert_eq!(listed, serde_json::json!({"volumes": []}));
    for wrong in ["models:rx", ":ro", "a:b:ro"] {
        assert_eq!(served.call(["create", "--volume", wrong]).code, Some(2), "{wrong}");
    }
}

#[test]
fn a_size_that_is_not_enforced_is_said_to_be_so() {
    let served = CliServer::on_tcp_with(&[("BELLJAR_VOLUME_STORAGE", "directory")]);
    assert_snapshot!(volume(&served, ["create", "soft", "--size", "8M"]), @r"
    exit 0
    --- stdout
    soft
    --- stderr
    belljar: its size is not enforced; `belljar doctor` says why
    ");
    let shown = volume(&served, ["show", "soft"]).stdout();
    assert!(shown.contains("not enforced") && shown.contains("directory"), "{shown}");
    let findings = served.context().finish(&mut served.context().belljar(["doctor", "--json"]));
    let findings = findings.json()["findings"].as_array().expect("a list").clone();
    let volumes = findings.iter().find(|finding| finding["feature"] == "volumes");
    let volumes = volumes.expect("it is mentioned");
    assert_eq!(volumes["state"], "weak", "{volumes}");
}
