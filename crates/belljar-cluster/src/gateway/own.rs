//! Requests that the gateway answers itself: health checks, metrics and the OpenAPI document.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use belljar_api::error::ApiError;
use belljar_engine::Principal;
use serde_json::json;

use super::Gateway;
use super::routes::Own;

impl Gateway {
    pub(super) fn answer_itself(
        &self,
        own: Own,
        request: &Request,
        who: Option<&Principal>,
    ) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let message = format!("`{}` does not take {}", request.uri().path(), request.method());
            let code = "method_not_allowed";
            return ApiError::new(StatusCode::METHOD_NOT_ALLOWED, code, message).into_response();
        }
        match own {
            Own::Health => self.health(who),
            Own::Ready => self.ready(),
            Own::Metrics => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                let text = self.metrics.render(&self.nodes.list());
                ([(header::CONTENT_TYPE, kind)], text).into_response()
            }
            Own::Document => ([(header::CONTENT_TYPE, "application/json")], self.document.clone())
                .into_response(),
        }
    }

    /// The process lives. It serves cached routes while the database cannot be reached, so that is no failure.
    fn health(&self, who: Option<&Principal>) -> Response {
        let is_known = who.is_some_and(|who| who.key_id.is_some());
        if self.wants_keys() && !is_known {
            return Json(json!({"status": "ok"})).into_response();
        }
        let nodes = self.nodes.alive();
        let version = env!("CARGO_PKG_VERSION");
        Json(json!({"status": "ok", "version": version, "backend": "gateway", "nodes": nodes}))
            .into_response()
    }

    fn ready(&self) -> Response {
        let reason = if self.draining.load(Ordering::Relaxed) {
            Some("the gateway is stopping")
        } else if self.nodes.alive() == 0 {
            Some("no node holds a lease")
        } else {
            None
        };
        match reason {
            None => Json(json!({"ready": true})).into_response(),
            Some(reason) => {
                let body = Json(json!({"ready": false, "reason": reason}));
                (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
            }
        }
    }
}
