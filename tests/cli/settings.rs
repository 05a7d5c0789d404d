//! Settings: their sources, and the errors for wrong ones.

use insta::assert_snapshot;

use belljar_testkit::command::TestContext;

#[test]
fn flags_win_over_the_environment_and_the_environment_over_dotenv() {
    let hungry = "print(len(b'x' * (150 << 20)) >> 20)";
    let context = TestContext::new().file(".env", "# small\nexport BELLJAR_MEMORY='64M'\n");
    assert_eq!(context.run(["-c", hungry]).code, Some(137), "by .env");
    assert_eq!(context.run(["--memory", "512M", "-c", hungry]).code, Some(0), "by flag");
    let context = context.env("BELLJAR_MEMORY", "512M");
    assert_eq!(context.run(["-c", hungry]).code, Some(0), "by environment");
    assert_eq!(context.run(["--memory", "64M", "-c", hungry]).code, Some(137), "by flag");
}

#[test]
fn a_wrong_setting_is_named_with_what_was_expected() {
    for (name, value, expected) in [
        ("BELLJAR_STRICT", "maybe", "1 or 0"),
        ("BELLJAR_CPUS", "none", "0.01 to 1024"),
        ("BELLJAR_MEMORY", "lots", "a size such as 512M or 2G, at least 16M"),
        ("BELLJAR_PIDS", "many", "a number from 4 to 100000"),
        ("SESSION_STORAGE", "disk", "TMPFS or BIND"),
        ("DATASET_ACCESS", "rw", "NONE, LOCAL_RO or API"),
        ("BELLJAR_BACKEND", "podman", "auto, native or docker"),
        ("BELLJAR_TTL", "1h", "seconds, 1 to 315360000"),
        ("BELLJAR_LOG_FORMAT", "xml", "text or json"),
    ] {
        let expected = format!(
            "exit 125\n--- stdout\n--- stderr\nbelljar: {name}={value}: expected {expected}\n"
        );
        let by_env = TestContext::new().env(name, value);
        assert_eq!(by_env.run(["-c", "1"]).to_string(), expected);
        let by_file = TestContext::new().file(".env", format!("{name}={value}\n"));
        assert_eq!(by_file.run(["-c", "1"]).to_string(), expected);
    }
}

#[test]
fn a_name_that_is_no_setting_is_refused_with_the_closest_that_is() {
    let by_env = TestContext::new().env("BELLJAR_MEMROY", "1G");
    assert_snapshot!(by_env.run(["-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: BELLJAR_MEMROY in the environment is not a setting; the closest is BELLJAR_MEMORY
    ");
    let by_file = TestContext::new().file(".env", "OTHERS=1\nBELLJAR_API_KYE=bjk_secret\n");
    assert_snapshot!(by_file.run(["-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: BELLJAR_API_KYE in .env is not a setting; the closest is BELLJAR_API_KEY
    ");
}

#[test]
fn a_secret_is_not_repeated() {
    let context = TestContext::new().env("BELLJAR_API_KEY", "bjk_12 34");
    assert_snapshot!(context.call(["key", "list"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: BELLJAR_API_KEY: expected a key as `belljar key create` shows it
    ");
}

#[test]
fn what_only_a_server_needs_does_not_disturb_other_commands() {
    let context = TestContext::new()
        .env("DATASET_ACCESS", "LOCAL_RO")
        .env("DATASETS_HOST_RO", "/nowhere")
        .env("BELLJAR_TLS_CERT", "/nowhere")
        .env("BELLJAR_TLS_KEY", "/nowhere")
        .env("BELLJAR_UNIX", "/nowhere/socket");
    let expected = "exit 0\n--- stdout\n1\n--- stderr\n";
    assert_eq!(context.run(["-c", "print(1)"]).to_string(), expected);
}

#[test]
fn a_broken_dotenv_is_named_with_its_line() {
    let context = TestContext::new().file(".env", "BELLJAR_PIDS=100\n\nnonsense\n");
    assert_snapshot!(context.run(["-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to read .env: line 3 is neither a comment nor NAME=value
    ");
    let context = TestContext::new().file(".env", b"BELLJAR_PIDS=\xff\n");
    assert_eq!(context.run(["-c", "1"]).code, Some(125));
}

#[test]
fn artifacts_go_where_the_settings_say() {
    let code = "open('/work/artifacts/a', 'w').write('x')";
    let context = TestContext::new().file(".env", "BELLJAR_OUTPUTS_DIR=results\n");
    assert_eq!(context.run(["-c", code]).code, Some(0));
    assert!(context.path("results").is_dir() && !context.path("outputs").exists());
    assert_eq!(context.run(["--outputs", "elsewhere", "-c", code]).code, Some(0));
    assert!(context.path("elsewhere").is_dir());
}
