//! The actions of a browser: a path and a body for each.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use belljar_engine::Principal;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{BrowserAnswer, perform};
use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{JsonBody, Path};

/// Declares actions: their description, name, path, and the fields of their body. All actions also have a tab, a
/// timeout and an id.
macro_rules! actions {
    ($(
        $(#[doc = $doc:literal])+
        $handler:ident($name:literal, $path:literal) $body:ident {
            $( needs { $( $(#[doc = $needed_doc:literal])+ $needed:ident: $needed_type:ty, )+ } )?
            $( $(#[doc = $field_doc:literal])+ $field:ident: $type:ty, )*
        }
    )+) => { $(
        #[derive(Debug, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $body {
            $( $( $(#[doc = $needed_doc])+ pub $needed: $needed_type, )+ )?
            $(
                $(#[doc = $field_doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
            /// The number of a tab, which is the current one from then on.
            #[schema(minimum = 0)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tab: Option<u32>,
            /// Seconds it may take.
            #[schema(exclusive_minimum = 0, maximum = 31_622_400)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub timeout: Option<f64>,
            /// Your own id: the same id is performed only once, and answered with the same result.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub exec_id: Option<String>,
        }

        $(#[doc = $doc])+
        #[utoipa::path(post, path = $path, tag = "browser", params(("id" = String, Path)),
            request_body = $body,
            responses(
                (status = 200, body = BrowserAnswer,
                    description = "The answer, or a stream of events (`Accept: text/event-stream`)"),
                (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
                (status = 410, body = ErrorBody), (status = 422, body = ErrorBody),
                (status = 429, body = ErrorBody), (status = 507, body = ErrorBody),
            ))]
        pub(crate) async fn $handler(
            State(app): State<Arc<App>>,
            Extension(who): Extension<Principal>,
            Path(id): Path<String>,
            headers: HeaderMap,
            JsonBody(body): JsonBody<$body>,
        ) -> Result<Response, ApiError> {
            perform(&app, &who, &id, &headers, $name, fields(&body)).await
        }
    )+ };
}

/// The fields of a body, as the driver gets them.
fn fields(body: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(body) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

actions! {
    /// Open a page, and wait until it is loaded as far as `until` says. A URL whose content is an
    /// attachment is downloaded.
    goto("goto", "/v1/sessions/{id}/browser/goto") GotoBody {
        needs {
            /// An address; `localhost` is the sandbox itself. A path is a file of the session.
            url: String,
        }
        /// How far to wait: `commit`, `domcontentloaded`, `load` (default), `networkidle` (no requests
        /// for half a second) or `none`.
        until: String,
        /// Also wait for an element with this CSS selector.
        wait_for: String,
        /// Milliseconds to wait after that.
        wait_ms: u32,
        /// In a new tab.
        new_tab: bool,
    }

    /// Click an element: by `ref` of a snapshot, CSS `selector`, or its `text`. Waits
    /// until it can be clicked, and for the page that it leads to.
    click("click", "/v1/sessions/{id}/browser/click") ClickBody {
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// The text of the element.
        text: String,
        /// `left` (default), `middle` or `right`.
        button: String,
        /// 2 is a double click.
        count: u8,
    }

    /// Type into an element, or choose an option of a list. Without an element: into whatever has
    /// the focus.
    type_text("type", "/v1/sessions/{id}/browser/type") TypeBody {
        needs {
            /// What to type.
            value: String,
        }
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// The label or placeholder of the element.
        text: String,
        /// Replace the present text (default), or type after it.
        clear: bool,
        /// Press Enter afterwards.
        submit: bool,
    }

    /// Press a key, or several at once.
    press("press", "/v1/sessions/{id}/browser/press") PressBody {
        needs {
            /// Such as `Enter`, `a`, `ArrowDown` or `Control+Shift+K`.
            key: String,
        }
    }

    /// Scroll: to an element, to the top or bottom, by pixels, or by a screen.
    scroll("scroll", "/v1/sessions/{id}/browser/scroll") ScrollBody {
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// The text of the element.
        text: String,
        /// `top` or `bottom`.
        to: String,
        /// Pixels to the right.
        x: f64,
        /// Pixels down. Default: one screen.
        y: f64,
    }

    /// Choose files of the session for an element that takes files.
    upload("upload", "/v1/sessions/{id}/browser/upload") UploadBody {
        needs {
            /// Their paths, in `/session` or absolute.
            files: Vec<String>,
        }
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// The text of the element.
        text: String,
    }

    /// Go back.
    back("back", "/v1/sessions/{id}/browser/back") BackBody {
        /// As with `goto`.
        until: String,
    }

    /// Go forward again.
    forward("forward", "/v1/sessions/{id}/browser/forward") ForwardBody {
        /// As with `goto`.
        until: String,
    }

    /// Load the page again.
    reload("reload", "/v1/sessions/{id}/browser/reload") ReloadBody {
        /// As with `goto`.
        until: String,
    }

    /// Wait for something.
    wait("wait", "/v1/sessions/{id}/browser/wait") WaitBody {
        /// As with `goto`.
        until: String,
        /// A CSS selector for which there must be an element.
        wait_for: String,
        /// Milliseconds.
        wait_ms: u32,
    }

    /// Read the text of the page, or of an element.
    text("text", "/v1/sessions/{id}/browser/text") TextBody {
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// `text` (default), as a person reads it, or `html`.
        format: String,
        /// More is cut off and counted (default 100,000).
        max_chars: u32,
    }

    /// The page as its accessibility tree: what it says and offers, with a `ref` for everything
    /// that can be used.
    snapshot("snapshot", "/v1/sessions/{id}/browser/snapshot") SnapshotBody {
        /// More is cut off and counted (default 100,000).
        max_chars: u32,
    }

    /// The value of a JavaScript expression in the page. Promises are waited for.
    evaluate("evaluate", "/v1/sessions/{id}/browser/evaluate") EvaluateBody {
        needs {
            /// Such as `document.links.length`, or several statements; the last one's value.
            expression: String,
        }
    }

    /// A screenshot of the page that is there, or of something else: a URL, an HTML file of the
    /// session, HTML itself. It becomes an artifact; with `Accept: image/png` the answer is the
    /// screenshot, and `Belljar-Artifact` its id.
    screenshot("screenshot", "/v1/sessions/{id}/browser/screenshot") ScreenshotBody {
        /// Of this page, which the current tab does not go to.
        url: String,
        /// Of this file of the session.
        file: String,
        /// Of this HTML; relative addresses in it are relative to `/session`.
        html: String,
        /// All of the page, not only what fits the window.
        full_page: bool,
        /// Of the window (default 1280).
        width: u32,
        /// Of the window (default 800).
        height: u32,
        /// Pixels of the screenshot per pixel of the page (default 1).
        scale: f64,
        /// Only of this element: a CSS selector.
        selector: String,
        /// Only of this element: a name of the last snapshot.
        r#ref: String,
        /// As with `goto`.
        until: String,
        /// As with `goto`.
        wait_for: String,
        /// As with `goto`.
        wait_ms: u32,
        /// Of the artifact.
        name: String,
    }

    /// Download a file to `/session/downloads`: by its URL (with the session's cookies; relative to
    /// the page), or by what is to be clicked.
    download("download", "/v1/sessions/{id}/browser/download") DownloadBody {
        /// Where it is.
        url: String,
        /// A name of the last snapshot, such as `e12`.
        r#ref: String,
        /// A CSS selector.
        selector: String,
        /// The text of the element.
        text: String,
        /// What to call it, if it is asked for by `url`.
        name: String,
    }

    /// Have a task done, said in natural language. browser-use does it with the session's browser
    /// and a model that speaks OpenAI's protocol; its steps are the output, as they happen
    /// (`Accept: text/event-stream`).
    task("task", "/v1/sessions/{id}/browser/task") TaskBody {
        needs {
            /// What is to be done.
            task: String,
        }
        /// The model's name; the server may have one by default.
        model: String,
        /// Where it answers, such as `https://api.example.com/v1`; reached by the session's network
        /// policy, which can add the key on the way (`network.inject`).
        base_url: String,
        /// The name of a variable of the session (`env`) that has the key, where the proxy does not
        /// add it. Default: `OPENAI_API_KEY`.
        key_from: String,
        /// Default 25, at most 200.
        max_steps: u32,
        /// Show screenshots of the pages to the model.
        vision: bool,
    }

    /// Close a tab, or the browser: it forgets everything, and the next action starts another.
    close("close", "/v1/sessions/{id}/browser/close") CloseBody {
    }
}
