//! `POST /v1/run`: one call, one sandbox, removed afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_engine::exec::{ExecParams, Source, language_named};
use belljar_engine::spec::{Datasets, SessionAsk};
use belljar_engine::volumes::VolumeMode;
use belljar_engine::{CheckedRun, Principal, RunAsk};
use belljar_proto::exec::Event;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, ErrorBody, internal};
use crate::execs::wants_stream;
use crate::fields::{Size, parse_network, parse_volumes};
use crate::input::JsonBody;
use crate::large;
use crate::sessions::AskedLimits;
use crate::stream::{done, render};
use crate::tenants::Share;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunBody {
    /// `python` (default), `bash`, `javascript`, `typescript` or another that the image has.
    pub language: Option<String>,
    pub code: String,
    /// Seconds it may run.
    #[schema(exclusive_minimum = 0, maximum = 31_622_400)]
    pub timeout: Option<f64>,
    pub env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub limits: AskedLimits,
    /// The image: one that the server has and allows, or `host`, the server's own machine.
    pub image: Option<String>,
    /// `NONE` or `LOCAL_RO`.
    #[schema(value_type = Option<String>)]
    pub datasets: Option<Datasets>,
    /// Which hosts the code may reach, as for a session.
    #[schema(value_type = Option<Object>)]
    pub network: Option<serde_json::Value>,
    /// Volumes below `/volumes`, as for a session.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub volumes: Option<BTreeMap<String, VolumeMode>>,
    /// Bytes of stdout and of stderr to keep, each.
    pub max_output: Option<Size>,
}

impl RunBody {
    fn into_run(self) -> Result<CheckedRun, ApiError> {
        let language = language_named(self.language.as_deref())?;
        let session = SessionAsk {
            image: self.image,
            datasets: self.datasets,
            env: self.env,
            network: self.network.map(parse_network).transpose()?,
            volumes: parse_volumes(self.volumes)?,
            ..self.limits.into_ask()?
        };
        let exec = ExecParams {
            timeout_s: self.timeout,
            output_limit: self.max_output.map(|size| size.0),
            ..ExecParams::new(Source::Code { language, text: self.code })
        };
        Ok(RunAsk { id: belljar_engine::new_id("run"), session, exec }.check()?)
    }
}

/// Run code once in a new sandbox. Files in `/work/artifacts` are kept, and are in `outputs/<run id>/` on
/// the server. Closing the connection ends the run.
#[utoipa::path(post, path = "/v1/run", tag = "runs", request_body = RunBody,
    responses((status = 200, body = Object, description = "The result, or a stream of events"),
        (status = 413, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Extension(share): Extension<Share>,
    links: Links,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RunBody>,
) -> Result<Response, ApiError> {
    let run = body.into_run()?;
    if wants_stream(&headers) {
        return Ok(streamed(app, links, who, run));
    }
    let transcript = run.transcript();
    let mut result = app.engine.run(&who, run).await?;
    result.warnings = app.limit_warnings();
    let bytes = transcript.held_bytes();
    // The result has a copy of the whole transcript.
    drop(transcript);
    let permit = share.reserve(bytes).await?;
    Ok(large::json(StatusCode::OK, &links.linked(result), permit))
}

fn streamed(app: Arc<App>, links: Links, who: Principal, run: CheckedRun) -> Response {
    let id = run.id().to_owned();
    let mut reader = run.transcript().read_from(0);
    let (sender, result) = oneshot::channel();
    // The run ends with the stream: a client that disconnected needs no result.
    let linked = links.linker();
    let running = AbortOnDrop(tokio::spawn(async move {
        let mut outcome = app.engine.run(&who, run).await;
        if let Ok(result) = &mut outcome {
            result.warnings = app.limit_warnings();
        }
        let _ = sender.send(outcome.map_err(ApiError::from));
    }));
    let events = async_events(move |events| async move {
        let _running = running;
        let first = json!({"exec_id": id}).to_string();
        events.send(SseEvent::default().event("exec").data(first)).await;
        let mut result = result;
        let finished = loop {
            tokio::select! {
                biased;
                piece = reader.next() => match piece {
                    // The last event is sent after the artifacts are stored.
                    Some(piece) if matches!(piece.event, Event::Done(_)) => break (&mut result).await,
                    Some(piece) => {
                        events.send(render(&linked, &piece, || unreachable!("not the last"))).await;
                    }
                    None => break (&mut result).await,
                },
                early = &mut result => break early,
            }
        };
        let last = match finished {
            Ok(Ok(result)) => SseEvent::default().event("done").data(done(result).to_string()),
            Ok(Err(error)) => failure(&error),
            Err(_) => failure(&internal("the run was lost".into())),
        };
        events.send(last).await;
    });
    Sse::new(events).keep_alive(KeepAlive::new()).into_response()
}

fn failure(error: &ApiError) -> SseEvent {
    SseEvent::default().event("failed").data(error.event_data().to_string())
}

/// A task that is aborted when its handle is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct EventSender(tokio::sync::mpsc::Sender<SseEvent>);

impl EventSender {
    async fn send(&self, event: SseEvent) {
        // When the client disconnects, the producer is dropped.
        let _ = self.0.send(event).await;
    }
}

/// A stream of the events that `produce` sends. `produce` runs only while the client reads.
fn async_events<F: Future<Output = ()> + Send + 'static>(
    produce: impl FnOnce(EventSender) -> F,
) -> impl stream::Stream<Item = Result<SseEvent, std::convert::Infallible>> + Send {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let producing = AbortOnDrop(tokio::spawn(produce(EventSender(sender))));
    stream::unfold((receiver, producing), |(mut receiver, producing)| async move {
        let event = receiver.recv().await?;
        Some((Ok(event), (receiver, producing)))
    })
}
