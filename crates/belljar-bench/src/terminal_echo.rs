//! Time from a key typed at a session's terminal to its echo.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::samples::{Samples, Summary};

/// How long an echo may take before the benchmark fails.
const ECHO_TIMEOUT: Duration = Duration::from_secs(10);

/// A line is complete after this time without output.
const LINE_PAUSE: Duration = Duration::from_millis(50);

/// Keys before the measurement, while caches are cold; they are not counted.
const COLD: usize = 50;

pub(crate) async fn measure(address: SocketAddr, id: &str, rounds: usize) -> Result<Summary> {
    let stream = TcpStream::connect(address).await.context("failed to connect")?;
    stream.set_nodelay(true).context("failed to connect")?;
    let url = format!("ws://{address}/v1/sessions/{id}/terminal?command=cat");
    let opened = tokio_tungstenite::client_async(url, stream).await;
    let (mut socket, _) = opened.context("failed to open a terminal")?;
    let mut samples = Samples::default();
    for round in 0..rounds + COLD {
        let key = [b'a' + u8::try_from(round % 26)?];
        let begun = Instant::now();
        socket.send(Message::Binary(key.to_vec().into())).await.context("failed to type")?;
        loop {
            let seen = timeout(ECHO_TIMEOUT, socket.next())
                .await
                .context("the terminal did not echo a key")?;
            match seen {
                // The echo may come together with the previous line, which `cat` repeats.
                Some(Ok(Message::Binary(bytes))) if bytes.ends_with(&key) => break,
                Some(Ok(_)) => {}
                _ => bail!("the terminal was closed"),
            }
        }
        if round >= COLD {
            samples.push(begun.elapsed());
        }
        // A terminal echoes no more than 4095 characters of a line.
        if round % 60 == 59 {
            socket.send(Message::Binary(vec![b'\r'].into())).await.context("failed to type")?;
            // Reads what `cat` repeats, so that it is not mistaken for an echo.
            while let Ok(Some(Ok(_))) = timeout(LINE_PAUSE, socket.next()).await {}
        }
    }
    let _ = socket.close(None).await;
    Ok(samples.summary())
}
