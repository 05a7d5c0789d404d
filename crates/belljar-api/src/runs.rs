//! `POST /v1/run`: one call, one sandbox, gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use belljar_engine::exec::transcript::Transcript;
use belljar_engine::run::Code;
use belljar_engine::spec::{Datasets, SessionAsk};
use belljar_engine::volumes::VolumeMode;
use belljar_engine::{Principal, RunAsk};
use belljar_proto::exec::{DEFAULT_TIMEOUT_MS, Event, Language};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{DEFAULT_OUTPUT, checked_output, parse_timeout, wants_stream};
use crate::input::Body;
use crate::large;
use crate::sessions::{AskedLimits, Size, check_env, parse_language, parse_network};
use crate::stream::{done, render};
use crate::tenants::Share;
use crate::volumes::parse_volumes;

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
    /// What it is made from: an image that the server has and allows, or `host`, the server's machine.
    pub image: Option<String>,
    /// `NONE` or `LOCAL_RO`.
    #[schema(value_type = Option<String>)]
    pub datasets: Option<Datasets>,
    /// Where the code may go, as for a session.
    #[schema(value_type = Option<Object>)]
    pub network: Option<serde_json::Value>,
    /// What it sees below `/volumes`, as for a session.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub volumes: Option<BTreeMap<String, VolumeMode>>,
    /// Bytes of stdout and of stderr to keep, each.
    pub max_output: Option<Size>,
}

impl RunBody {
    fn into_ask(self) -> Result<RunAsk, ApiError> {
        if let Some(env) = &self.env {
            check_env(env)?;
        }
        let code = match parse_language(self.language.as_deref())? {
            Language::Python => Code::Python { code: self.code.into_bytes(), echo: true },
            Language::Bash if self.code.contains('\0') => {
                return Err(ApiError::invalid("code: a shell cannot read NUL bytes"));
            }
            Language::Bash => Code::Bash { code: self.code, args: Vec::new() },
            language => Code::Cell { language, code: self.code.into_bytes(), echo: true },
        };
        let network = self.network.map(parse_network).transpose()?;
        let volumes = parse_volumes(self.volumes)?;
        let limits = self.limits.checked()?;
        Ok(RunAsk {
            id: belljar_engine::new_id("run"),
            session: SessionAsk {
                image: self.image,
                datasets: self.datasets,
                env: self.env,
                network,
                volumes,
                ..limits
            },
            code,
            timeout_ms: self.timeout.map_or(Ok(DEFAULT_TIMEOUT_MS), parse_timeout)?,
            output_limit: self.max_output.map_or(Ok(DEFAULT_OUTPUT), checked_output)?,
        })
    }
}

/// Run code once in a fresh sandbox. Files it leaves in `/work/artifacts` are kept, and shown under
/// `outputs/<run id>/` on the server. Going away ends it.
#[utoipa::path(post, path = "/v1/run", tag = "runs", request_body = RunBody,
    responses((status = 200, body = Object, description = "The result, or a stream of events"),
        (status = 413, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Extension(share): Extension<Share>,
    headers: HeaderMap,
    Body(body): Body<RunBody>,
) -> Result<Response, ApiError> {
    let ask = body.into_ask()?;
    if wants_stream(&headers) {
        return Ok(streamed(app, who, ask));
    }
    let transcript = Transcript::new(ask.output_limit);
    let mut result = app.engine.run(&who, ask, &transcript).await?;
    result.warnings = app.limit_warnings();
    // What it said is in the result now.
    let bytes = transcript.held_bytes();
    drop(transcript);
    let held = share.reserve(bytes).await?;
    Ok(large::json(StatusCode::OK, &app.linked(result), held))
}

fn streamed(app: Arc<App>, who: Principal, ask: RunAsk) -> Response {
    let id = ask.id.clone();
    let transcript = Arc::new(Transcript::new(ask.output_limit));
    let mut reader = transcript.read_from(0);
    let (sender, result) = oneshot::channel();
    // Ends with the stream: whoever went away wants no result.
    let linked = app.linker();
    let running = Aborted(tokio::spawn(async move {
        let mut outcome = app.engine.run(&who, ask, &transcript).await;
        if let Ok(result) = &mut outcome {
            result.warnings = app.limit_warnings();
        }
        let _ = sender.send(outcome.map_err(ApiError::from));
    }));
    let events = async_events(move |tell| async move {
        let _running = running;
        let first = json!({"exec_id": id}).to_string();
        tell.send(SseEvent::default().event("exec").data(first)).await;
        let mut result = result;
        let finished = loop {
            tokio::select! {
                biased;
                piece = reader.next() => match piece {
                    // The last event waits for the artifacts.
                    Some(piece) if matches!(piece.event, Event::Done(_)) => break (&mut result).await,
                    Some(piece) => {
                        tell.send(render(&linked, &piece, || unreachable!("not the last"))).await;
                    }
                    None => break (&mut result).await,
                },
                early = &mut result => break early,
            }
        };
        let last = match finished {
            Ok(Ok(result)) => SseEvent::default().event("done").data(done(result).to_string()),
            Ok(Err(error)) => failure(&error),
            Err(_) => failure(&ApiError::invalid("the run was lost")),
        };
        tell.send(last).await;
    });
    Sse::new(events).keep_alive(KeepAlive::new()).into_response()
}

fn failure(error: &ApiError) -> SseEvent {
    let data = json!({
        "status": error.status.as_u16(),
        "retry_after": error.retry_after_s,
        "error": {"code": error.code, "message": error.message, "hint": error.hint},
    });
    SseEvent::default().event("failed").data(data.to_string())
}

/// A task that ends with its handle.
struct Aborted(tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a producer of events puts them.
struct Tell(tokio::sync::mpsc::Sender<SseEvent>);

impl Tell {
    async fn send(&self, event: SseEvent) {
        // A reader that went away drops the whole producer.
        let _ = self.0.send(event).await;
    }
}

/// A stream of what `produce` tells, which runs only while somebody reads.
fn async_events<F: Future<Output = ()> + Send + 'static>(
    produce: impl FnOnce(Tell) -> F,
) -> impl stream::Stream<Item = Result<SseEvent, std::convert::Infallible>> + Send {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let producing = Aborted(tokio::spawn(produce(Tell(sender))));
    stream::unfold((receiver, producing), |(mut receiver, producing)| async move {
        let event = receiver.recv().await?;
        Some((Ok(event), (receiver, producing)))
    })
}
