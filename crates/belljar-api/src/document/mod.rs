//! Completes the OpenAPI document that utoipa generates from the handlers.
//!
//! Added here: the errors of every operation ([`errors`]), keys, names of operations, links from one operation to the
//! next, examples, and constraints on values that the Rust types do not express. Handlers are not described here, but
//! by their own annotations.

mod errors;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tracing::subscriber::{NoSubscriber, with_default};

use self::errors::{BodyKind, Operation};
use crate::error::ApiError;

/// Methods that can be an operation of a path.
const METHODS: [&str; 8] = ["get", "head", "post", "put", "patch", "delete", "options", "trace"];

/// The whole document.
pub(crate) fn complete(described: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(described).unwrap_or_default();
    values::refine(&mut document);
    add_keys(&mut document);
    // Making a server error writes to the log. These errors did not happen, so the log is switched off.
    with_default(NoSubscriber::new(), || for_each_operation(&mut document, complete_operation));
    add_links(&mut document);
    document
}

fn for_each_operation(document: &mut Value, mut act: impl FnMut(&Value, &str, &str, &mut Value)) {
    let components = document["components"].clone();
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, operations) in paths {
        let Some(operations) = operations.as_object_mut() else { continue };
        for (method, operation) in operations {
            if METHODS.contains(&method.as_str()) {
                act(&components, path, method, operation);
            }
        }
    }
}

fn complete_operation(components: &Value, path: &str, method: &str, operation: &mut Value) {
    let id = name_of(operation, method);
    operation["operationId"] = json!(id);
    let body = body_of(components, operation);
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let has_query = parameters
        .is_some_and(|parameters| parameters.iter().any(|parameter| parameter["in"] == "query"));
    let described = Operation { id: &id, path, has_query, body };
    if described.is_open() {
        operation["security"] = json!([]);
    }
    add_errors(operation, &described.errors());
    if let Some(example) = values::example(&id) {
        operation["requestBody"]["content"]["application/json"]["example"] = example;
    }
}

/// A name for each operation that is unique in the document: the part of the API, and the handler's name.
fn name_of(operation: &Value, method: &str) -> String {
    let tag = operation["tags"][0].as_str().unwrap_or("api").replace(' ', "_");
    let handler = operation["operationId"].as_str().unwrap_or(method);
    match method {
        "head" => format!("{tag}_{handler}_head"),
        _ => format!("{tag}_{handler}"),
    }
}

/// The kind of body that it takes. A body without required fields may be left out.
fn body_of(components: &Value, operation: &mut Value) -> BodyKind {
    let Some(body) = operation.get_mut("requestBody") else { return BodyKind::None };
    let Some(schema) = body["content"].get("application/json").map(|content| &content["schema"])
    else {
        // The body may be empty, because a file can be empty.
        body["required"] = json!(false);
        return BodyKind::Raw;
    };
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    let schema = name.map_or(schema, |name| &components["schemas"][name]);
    let is_needed = ["required", "anyOf", "oneOf"].iter().any(|word| !schema[word].is_null());
    body["required"] = json!(is_needed);
    BodyKind::Json
}

/// All errors with the same status become one response in the document, which lists their codes.
fn add_errors(operation: &mut Value, errors: &[ApiError]) {
    let mut codes: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for error in errors {
        codes.entry(error.status.as_u16()).or_default().insert(error.code);
    }
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    // The annotation of a handler may describe an error; its codes are added here.
    responses.retain(|status, response| {
        let is_error = schema_of(response) == Some(ERROR_SCHEMA);
        !is_error || status.parse().is_ok_and(|status: u16| codes.contains_key(&status))
    });
    for (status, codes) in codes {
        let present = responses.get(&status.to_string());
        // `healthz` responds with 503 and a body that is not an error.
        if present.and_then(schema_of).is_none_or(|schema| schema == ERROR_SCHEMA) {
            let answer = error_answer(status, codes, present);
            responses.insert(status.to_string(), answer);
        }
    }
    for (status, response) in responses {
        if response.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
            let status = status.parse().ok().and_then(|status| StatusCode::from_u16(status).ok());
            let reason = status.and_then(|status| status.canonical_reason()).unwrap_or("Answer");
            response["description"] = json!(reason);
        }
    }
}

const ERROR_SCHEMA: &str = "#/components/schemas/ErrorBody";

/// The name of the schema of a JSON response.
fn schema_of(response: &Value) -> Option<&str> {
    response.pointer("/content/application~1json/schema/$ref")?.as_str()
}

/// The response with this status: the text of the handler's annotation, and the codes.
fn error_answer(status: u16, codes: BTreeSet<&str>, present: Option<&Value>) -> Value {
    let own = present.and_then(|present| present["description"].as_str());
    let own = own.map(|own| format!("{own}. ")).unwrap_or_default();
    let list: Vec<String> = codes.into_iter().map(|code| format!("`{code}`")).collect();
    let mut answer = json!({
        "description": format!("{own}Codes: {}", list.join(", ")),
        "content": {"application/json": {"schema": {"$ref": ERROR_SCHEMA}}},
    });
    if let Some(headers) = headers_of(status) {
        answer["headers"] = headers;
    }
    answer
}

fn headers_of(status: u16) -> Option<Value> {
    let seconds = json!({"type": "integer", "minimum": 1});
    match status {
        401 => Some(json!({"WWW-Authenticate": {
            "description": "How to show a key.", "schema": {"type": "string"},
        }})),
        429 | 502 | 503 => Some(json!({"Retry-After": {
            "description": "Seconds after which asking again makes sense, where that is known.",
            "schema": seconds,
        }})),
        _ => None,
    }
}

/// How a client sends a key. A server without keys accepts requests without one, from its own machine.
fn add_keys(document: &mut Value) {
    document["components"]["securitySchemes"] = json!({
        "bearer": {
            "type": "http", "scheme": "bearer",
            "description": "A key of `belljar key create`. A server that has no keys needs none.",
        },
        "api_key": {
            "type": "apiKey", "in": "header", "name": "X-API-Key",
            "description": "The same key, in a header of its own.",
        },
    });
    document["security"] = json!([{"bearer": []}, {"api_key": []}]);
}

/// An operation whose response contains ids, and where they are; other operations take them as parameters.
struct LinkSource {
    operation: &'static str,
    statuses: &'static [&'static str],
    /// Parameters of paths, and where their values are in the response.
    gives: &'static [(&'static str, &'static str)],
    /// The prefix of the paths that have these parameters.
    below: &'static str,
}

const SOURCES: [LinkSource; 8] = [
    LinkSource {
        operation: "sessions_create",
        statuses: &["200", "201"],
        gives: &[("id", "$response.body#/id")],
        below: "/v1/sessions/{id}",
    },
    LinkSource {
        operation: "sessions_fork",
        statuses: &["201"],
        gives: &[("id", "$response.body#/sessions/0/id")],
        below: "/v1/sessions/{id}",
    },
    LinkSource {
        operation: "execs_exec",
        statuses: &["200", "202"],
        gives: &[("id", "$request.path.id"), ("exec", "$response.body#/exec_id")],
        below: "/v1/sessions/{id}/execs/{exec}",
    },
    LinkSource {
        operation: "terminals_list",
        statuses: &["200"],
        gives: &[("id", "$request.path.id"), ("terminal", "$response.body#/terminals/0/terminal")],
        below: "/v1/sessions/{id}/terminals/{terminal}",
    },
    LinkSource {
        operation: "files_write",
        statuses: &["200"],
        gives: &[("id", "$request.path.id"), ("path", "$request.path.path")],
        below: "/v1/sessions/{id}/files/{path}",
    },
    LinkSource {
        operation: "artifacts_list",
        statuses: &["200"],
        gives: &[("id", "$response.body#/artifacts/0/id")],
        below: "/v1/artifacts/{id}",
    },
    LinkSource {
        operation: "artifacts_list_of_session",
        statuses: &["200"],
        gives: &[("id", "$response.body#/artifacts/0/id")],
        below: "/v1/artifacts/{id}",
    },
    LinkSource {
        operation: "volumes_create",
        statuses: &["201"],
        gives: &[("name", "$response.body#/name")],
        below: "/v1/volumes/{name}",
    },
];

/// Adds links from the responses of an operation to the operations that can follow.
fn add_links(document: &mut Value) {
    let mut targets: Vec<(String, String)> = Vec::new();
    for_each_operation(document, |_, path, _, operation| {
        let id = operation["operationId"].as_str().unwrap_or_default();
        targets.push((path.to_owned(), id.to_owned()));
    });
    for_each_operation(document, |_, _, _, operation| {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        for source in SOURCES.iter().filter(|source| source.operation == id) {
            let links = source.links(&targets);
            source.put(operation, &links);
        }
        if id == "simple_sandbox_create_session" {
            let session = json!({"session_id": "$response.body#/session_id"});
            operation["responses"]["200"]["links"] = json!({
                "simple_sandbox_execute": {
                    "operationId": "simple_sandbox_execute", "requestBody": session,
                },
                "simple_sandbox_cleanup": {
                    "operationId": "simple_sandbox_cleanup", "requestBody": session,
                },
            });
        }
    });
}

impl LinkSource {
    fn links(&self, targets: &[(String, String)]) -> Value {
        let parameters: Map<String, Value> =
            self.gives.iter().map(|(name, place)| ((*name).to_owned(), json!(place))).collect();
        // Only operations that need no other parameters: the others follow from the responses of these.
        let follows = |path: &str| {
            path.starts_with(self.below)
                && path.matches('{').count() == self.gives.len()
                && path.matches("{id}").count() <= 1
        };
        let links = targets
            .iter()
            .filter(|(path, _)| follows(path))
            .map(|(_, id)| (id.clone(), json!({"operationId": id, "parameters": parameters})));
        Value::Object(links.collect())
    }

    fn put(&self, operation: &mut Value, links: &Value) {
        for status in self.statuses {
            if let Some(response) = operation["responses"].get_mut(status) {
                response["links"] = links.clone();
            }
        }
    }
}
