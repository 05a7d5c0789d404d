//! Ends of executions: the only writes that wait for others, to share a statement with them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Node;
use super::pool::{Connection, Failed, Pool, Side, Work};
use super::signed;
use crate::{BackendError, FinishedExec, StoreError, lock_unpoisoned, status_name};

/// How long the first end of a batch waits for others.
const SOON: Duration = Duration::from_millis(20);

/// Ends in one statement.
const BATCH: usize = 64;

/// A batch with this many bytes of transcripts waits no longer.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

const QUEUE: usize = 1024;

/// How many finished executions are kept per session.
const KEPT_EXECS: u64 = 100;

/// How many bytes of code and transcripts are kept per session.
const KEPT_BYTES: i64 = 64 * 1024 * 1024;

/// The oldest executions of a session are deleted each time after this many executions.
const PRUNE_EVERY: u64 = 50;

/// The first statement locks the sessions, so that none of them changes its owner meanwhile.
const FINISH: &str = "
    WITH ended AS (
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bytea[],
            $6::bigint[], $7::bigint[])
            AS e (session, id, ended_ms, status, transcript, expires_ms, epoch)
    ), mine AS (
        SELECT s.id FROM sessions s JOIN (SELECT DISTINCT session, epoch FROM ended) e
            ON s.id = e.session AND s.epoch = e.epoch
        WHERE s.owner = $8 ORDER BY s.id FOR NO KEY UPDATE OF s
    ), done AS (
        UPDATE execs SET ended_ms = e.ended_ms, status = e.status, transcript = e.transcript
        FROM ended e JOIN mine ON mine.id = e.session
        WHERE execs.session = e.session AND execs.id = e.id
    ), used AS (
        UPDATE sessions s SET used_ms = greatest(s.used_ms, l.ended_ms),
            expires_ms = greatest(s.expires_ms, l.expires_ms)
        FROM (SELECT session, max(ended_ms) AS ended_ms, max(expires_ms) AS expires_ms
              FROM ended WHERE expires_ms IS NOT NULL GROUP BY session) l
        JOIN mine ON mine.id = l.session WHERE s.id = l.session
    )
    SELECT id FROM mine";

type Answer = oneshot::Sender<Result<(), StoreError>>;
type Queued = (FinishedExec, Answer);

/// A task that stores ends of executions in batches.
#[derive(Debug)]
pub(super) struct Finisher {
    queue: Mutex<Option<mpsc::Sender<Queued>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Finisher {
    pub(super) fn start(pool: Pool, node: Arc<Node>) -> Finisher {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let task = tokio::spawn(run(pool, node, receiver));
        Finisher { queue: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
    }

    pub(super) async fn finish(&self, finished: FinishedExec) -> Result<(), StoreError> {
        let queue = lock_unpoisoned(&self.queue).clone().ok_or(StoreError::Closed)?;
        let (sender, receiver) = oneshot::channel();
        queue.send((finished, sender)).await.map_err(|_| StoreError::Closed)?;
        receiver.await.map_err(|_| StoreError::Closed)?
    }

    /// Completes the ends that wait.
    pub(super) async fn close(&self) {
        drop(lock_unpoisoned(&self.queue).take());
        let task = lock_unpoisoned(&self.task).take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}

async fn run(pool: Pool, node: Arc<Node>, mut queue: mpsc::Receiver<Queued>) {
    while let Some(first) = queue.recv().await {
        let mut bytes = first.0.transcript.len();
        let mut batch = vec![first];
        let deadline = tokio::time::Instant::now() + SOON;
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match tokio::time::timeout_at(deadline, queue.recv()).await {
                Ok(Some(next)) => {
                    bytes += next.0.transcript.len();
                    batch.push(next);
                }
                _ => break,
            }
        }
        let (ends, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let sessions: Vec<String> = ends.iter().map(|end| end.session.clone()).collect();
        let stored = store(&pool, &node, ends).await;
        for (session, answer) in sessions.into_iter().zip(answers) {
            let _ = answer.send(result_of(&stored, session, &node));
        }
    }
}

fn result_of(
    stored: &Result<Vec<String>, StoreError>,
    session: String,
    node: &Node,
) -> Result<(), StoreError> {
    match stored {
        Ok(mine) if mine.contains(&session) => Ok(()),
        Ok(_) => {
            node.disown(&session);
            Err(StoreError::Fenced { session })
        }
        Err(StoreError::Unavailable(cause)) => Err(StoreError::Unavailable(cause.clone())),
        Err(StoreError::Write(cause)) => Err(StoreError::Write(BackendError::clone(cause))),
        Err(_) => Err(StoreError::Closed),
    }
}

/// Stores the ends, and returns the sessions that this node owns.
async fn store(
    pool: &Pool,
    node: &Arc<Node>,
    ends: Vec<FinishedExec>,
) -> Result<Vec<String>, StoreError> {
    let node = Arc::clone(node);
    // Not lost with a crash of Postgres: the guest drops an execution whose end is stored, and without both the next
    // server would run it again.
    pool.write(Side::Safe, move |connection| -> Work<'_, Vec<String>> {
        Box::pin(async move {
            let column = |of: fn(&FinishedExec) -> &str| ends.iter().map(of).collect::<Vec<_>>();
            let sessions = column(|end| &end.session);
            let epochs: Vec<i64> =
                sessions.iter().map(|session| node.epoch_or_none(session)).collect();
            let rows = connection
                .query(
                    FINISH,
                    &[
                        &sessions,
                        &column(|end| &end.id),
                        &ends.iter().map(|end| end.ended_ms).collect::<Vec<_>>(),
                        &column(|end| status_name(end.status)),
                        &ends.iter().map(|end| end.transcript.as_slice()).collect::<Vec<_>>(),
                        &ends.iter().map(|end| end.expires_ms).collect::<Vec<_>>(),
                        &epochs,
                        &node.id,
                    ],
                )
                .await?;
            let mine: Vec<String> =
                rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            for end in ends.iter().filter(|end| end.number.is_multiple_of(PRUNE_EVERY)) {
                if mine.contains(&end.session) {
                    prune(connection, &end.session, end.number).await?;
                }
            }
            Ok(mine)
        })
    })
    .await
}

async fn prune(connection: &mut Connection, session: &str, newest: u64) -> Result<(), Failed> {
    connection
        .execute(
            "DELETE FROM execs WHERE session = $1 AND ended_ms IS NOT NULL AND number <= $2",
            &[&session, &signed(newest.saturating_sub(KEPT_EXECS))],
        )
        .await?;
    connection
        .execute(
            "DELETE FROM execs WHERE session = $1 AND ended_ms IS NOT NULL AND number < (
                 SELECT coalesce(min(number), $3) FROM (
                     SELECT number, sum(octet_length(transcript) + octet_length(code))
                         OVER (ORDER BY number DESC) AS bytes
                     FROM execs WHERE session = $1) AS sizes
                 WHERE bytes <= $2::bigint)",
            &[&session, &KEPT_BYTES, &signed(newest)],
        )
        .await?;
    Ok(())
}
