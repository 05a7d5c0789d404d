//! Terminals: interactive shells that clients leave and attach to again.

use serde_json::{Value, json};

use crate::backend::Backend;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::terminal::{TerminalClient, refused};
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

async fn terminals(server: &Server, session: &Session) -> Vec<Value> {
    let list = server.get(&session.path("/terminals")).await.json(200);
    list["terminals"].as_array().expect("a list").clone()
}

pub(crate) async fn a_terminal_echoes_resizes_and_ends(on: Backend) {
    let (_site, server, session) = on.session(json!({"env": {"WHOSE": "session"}})).await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "rows=11&cols=66").await;
    terminal.until("$ ").await;
    terminal.press("tty; stty size; echo $TERM $WHOSE; id -u; pwd\n").await;
    let shown = terminal.until("/session\r\n").await;
    assert!(shown.contains("11 66\r\nxterm-256color session\r\n1000\r\n"), "{shown}");
    assert!(shown.contains("/dev/pts/"), "{shown}");
    if on == Backend::Runsc {
        // Terminals of the tested gVisor version send no signals, so only input and output are tested.
        terminal.press("exit 7\n").await;
        assert_eq!(terminal.end().await["exit_code"], 7);
        return;
    }
    // State is kept, job control works, and Ctrl-C ends the program but not the shell. The program
    // itself prints `begun`: by then it is in the foreground of the terminal.
    terminal.press("x=5; sh -c 'echo be\"\"gun; exec sleep 1000'\n").await;
    terminal.until("begun\r\n").await;
    terminal.press([3]).await;
    terminal.until("^C").await;
    terminal.press("echo $x$x\n").await;
    terminal.until("55\r\n").await;
    terminal.press("trap 'echo si''ze $(stty size)' WINCH; echo tra''pped\n").await;
    terminal.until("trapped\r\n").await;
    terminal.say(json!({"type": "resize", "rows": 30, "cols": 100})).await;
    terminal.until("size 30 100\r\n").await;
    assert_eq!(terminals(&server, &session).await[0]["cols"], 100);
    terminal.press("exit 7\n").await;
    let end = terminal.end().await;
    assert_eq!((&end["type"], &end["exit_code"]), (&json!("exit"), &json!(7)), "{end}");

    // A command instead of a shell, and requests that are refused.
    let command = "command=echo%20%24TERM%3B%20pwd%3B%20kill%20-9%20%24%24&cwd=/tmp&term=vt100";
    let mut terminal = TerminalClient::take(&server.client(), &session, command).await;
    let end = terminal.end().await;
    assert_eq!(terminal.seen, "vt100\r\n/tmp\r\n");
    assert_eq!((&end["exit_code"], &end["signal"]), (&json!(137), &json!(9)), "{end}");
    refused(&server.client(), &session, "cwd=/nowhere", 422, "invalid").await;
    refused(&server.client(), &session, "terminal=none", 404, "terminal_not_found").await;
}

pub(crate) async fn a_terminal_is_left_and_found_again(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    let client = server.client();
    let mut first = TerminalClient::take(&client, &session, "").await;
    first.until("$ ").await;
    first.press("x=kept; for i in $(seq 200); do echo li''ne $i; done\n").await;
    first.until("line 200\r\n").await;
    let (id, position) = (first.id.clone(), first.position);
    // Two clients of one terminal see the same output. A second terminal has its own state.
    let mut second = TerminalClient::take(&client, &session, &format!("terminal={id}")).await;
    let before = second.until("line 200\r\n").await;
    assert!(before.contains("line 1\r\nline 2\r\n"), "{before}");
    second.press("echo both-$x\n").await;
    first.until("both-kept\r\n").await;
    second.until("both-kept\r\n").await;
    let mut other = TerminalClient::take(&client, &session, "").await;
    other.until("$ ").await;
    other.press("echo \"[$x]\"\n").await;
    other.until("[]\r\n").await;
    drop((first, second, other));
    // The terminal continues without clients. A client that comes back gets the output that it missed.
    let nobody = async || terminals(&server, &session).await[0]["attached"] == 0;
    eventually("nobody is attached", nobody).await;
    let query = format!("terminal={id}&offset={position}");
    let mut back = TerminalClient::take(&client, &session, &query).await;
    let missed = back.until("both-kept\r\n").await;
    assert!(!missed.contains("line 200"), "{missed}");
    back.press("(sleep 0.3; echo la''ter) &\n").await;
    back.until("\r\n").await;
    drop(back);
    let mut back = TerminalClient::take(&client, &session, &format!("terminal={id}")).await;
    back.until("later\r\n").await;
    // Large output arrives complete, and keys are not delayed by output that is not read.
    back.press("seq -f '%09.0f' 20000; echo al''l\n").await;
    let numbers = back.until("all\r\n").await;
    assert!(numbers.contains("000019999\r\n000020000\r\n"), "{}", numbers.len());
    let found = terminals(&server, &session).await;
    let ids: Vec<&str> = found.iter().map(|found| text(&found["terminal"])).collect();
    assert_eq!((ids.len(), ids[0]), (2, id.as_str()), "{found:#?}");
    assert_eq!(server.delete(&session.path(&format!("/terminals/{id}"))).await.status, 204);
    assert_eq!(terminals(&server, &session).await.len(), 1);
}

/// A terminal belongs to the sandbox: a server that starts again finds it.
pub(crate) async fn a_terminal_outlives_the_server(on: Backend) {
    let (site, server, session) = on.session(json!({})).await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "").await;
    terminal.until("$ ").await;
    terminal.press("x=kept; echo re''ady\n").await;
    terminal.until("ready\r\n").await;
    let (id, position) = (terminal.id.clone(), terminal.position);
    server.kill().await;
    let server = site.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let query = format!("terminal={id}&offset={position}");
    let mut terminal = TerminalClient::take(&server.client(), &session, &query).await;
    terminal.press("echo still-$x\n").await;
    terminal.until("still-kept\r\n").await;
}
