//! A key at a terminal of a session, until it is seen.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::samples::{Samples, Summary};

/// Nothing takes longer that still comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// After this nothing more comes of a line.
const LULL: Duration = Duration::from_millis(50);

pub(super) async fn measure(address: SocketAddr, id: &str, rounds: usize) -> Result<Summary> {
    let stream = TcpStream::connect(address).await.context("failed to connect")?;
    stream.set_nodelay(true).context("failed to connect")?;
    let url = format!("ws://{address}/v1/sessions/{id}/terminal?command=cat");
    let opened = tokio_tungstenite::client_async(url, stream).await;
    let (mut socket, _) = opened.context("failed to open a terminal")?;
    let mut samples = Samples::default();
    // The first ones find caches cold.
    for round in 0..rounds + 50 {
        let key = [b'a' + u8::try_from(round % 26)?];
        let begun = Instant::now();
        socket.send(Message::Binary(key.to_vec().into())).await.context("failed to type")?;
        loop {
            let seen = timeout(PATIENCE, socket.next()).await.context("nothing is echoed")?;
            match seen {
                // It may come together with the line before, as `cat` says it again.
                Some(Ok(Message::Binary(bytes))) if bytes.ends_with(&key) => break,
                Some(Ok(_)) => {}
                _ => bail!("the terminal was lost"),
            }
        }
        if round >= 50 {
            samples.push(begun.elapsed());
        }
        // A line has an end: what is typed beyond 4095 characters would not be echoed.
        if round % 60 == 59 {
            socket.send(Message::Binary(vec![b'\r'].into())).await.context("failed to type")?;
            // What `cat` says to that must not be taken for an echo, nor hide one.
            while let Ok(Some(Ok(_))) = timeout(LULL, socket.next()).await {}
        }
    }
    let _ = socket.close(None).await;
    Ok(samples.summary())
}
