//! Constraints on values that the Rust types do not express, and examples.

use belljar_engine::exec::USER_NAME;
use belljar_engine::session::rules::Phase;
use belljar_runtime::{USER_ID, languages};
use serde_json::{Map, Value, json};

/// Names of environment variables: the kernel accepts any name except these.
const VARIABLE_NAME: &str = "^[^=\\u0000]+$";
const VARIABLE_VALUE: &str = "^[^\\u0000]*$";

const VOLUME_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
const DATASET_NAME: &str = r"^[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]{0,199}(/[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]{0,199}){0,7}$";
const EXEC_ID: &str = "^[A-Za-z0-9_.-]{1,64}$";
const SIZE: &str = "^[0-9]+([bB]|[kKmMgGtT]([iI]?[bB])?)?$";

/// Adds what the schemas and parameters of the handlers leave out.
pub(super) fn refine(document: &mut Value) {
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        for (name, schema) in schemas.iter_mut() {
            refine_schema(name, schema);
        }
        schemas.insert("Network".into(), network());
        schemas.insert("ExecEvents".into(), events());
    }
    walk(document);
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, operations) in paths {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                refine_parameters(operation);
                refine_answers(path, method, operation);
            }
        }
    }
}

/// Numbers that cannot be negative get the full range of their unsigned type.
fn walk(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("minimum").and_then(Value::as_i64).is_some_and(|least| least >= 0) {
                let wider = match fields.get("format").and_then(Value::as_str) {
                    Some("int32") => Some(("uint32", json!(u32::MAX))),
                    Some("int64") => Some(("uint64", json!(u64::MAX))),
                    _ => None,
                };
                if let Some((format, most)) = wider {
                    fields.insert("format".into(), json!(format));
                    fields.entry("maximum").or_insert(most);
                }
            }
            fields.values_mut().for_each(walk);
        }
        Value::Array(items) => items.iter_mut().for_each(walk),
        _ => {}
    }
}

fn refine_schema(name: &str, schema: &mut Value) {
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (field, described) in fields {
            refine_field(name, field, described);
        }
    }
    match name {
        "NumberOrText" => {
            for variant in schema["oneOf"].as_array_mut().into_iter().flatten() {
                if variant["type"] == "string" {
                    variant["pattern"] = json!(SIZE);
                    variant["example"] = json!("512M");
                }
            }
        }
        // These fields are all present, or all absent.
        "HealthBody" => {
            schema["allOf"][0] = json!({"anyOf": [
                {"$ref": "#/components/schemas/HealthDetail"}, {"type": "object"},
            ]});
        }
        "User" => *schema = json!({"enum": [USER_ID, USER_ID.to_string(), USER_NAME]}),
        "CommandLine" => {
            let argument = json!({"type": "string", "pattern": VARIABLE_VALUE});
            let program = json!({"type": "string", "pattern": "^[^\\u0000]+$"});
            *schema = json!({"oneOf": [program, {
                "type": "array", "minItems": 1, "prefixItems": [program], "items": argument,
            }]});
        }
        "CreateVolume" => schema["properties"]["name"]["pattern"] = json!(VOLUME_NAME),
        "ExecBody" => {
            schema["oneOf"] = json!([
                {"required": ["code"], "properties": {"code": {"type": "string"},
                    "command": {"type": "null"}}},
                {"required": ["command"], "properties": {"code": {"type": "null"},
                    "command": {"not": {"type": "null"}}}},
            ]);
        }
        _ => {}
    }
}

/// Fields of the same name have the same meaning in all schemas.
fn refine_field(schema: &str, field: &str, described: &mut Value) {
    match field {
        "env" => {
            described["propertyNames"] = json!({"pattern": VARIABLE_NAME});
            described["additionalProperties"]["pattern"] = json!(VARIABLE_VALUE);
        }
        "volumes" => {
            described["propertyNames"] = json!({"pattern": VOLUME_NAME});
            described["additionalProperties"]["enum"] = json!(["rw", "ro"]);
            described["maxProperties"] = json!(16);
        }
        "exec_id" => described["pattern"] = json!(EXEC_ID),
        "language" if matches!(schema, "ExecBody" | "RunBody") => {
            let names = languages::all_names().into_iter().map(Value::from);
            described["enum"] = names.chain([Value::Null]).collect();
        }
        "command" if schema == "Execute" => described["pattern"] = json!(VARIABLE_VALUE),
        "dataset" if schema == "StageBody" => described["pattern"] = json!(DATASET_NAME),
        "datasets" if schema == "ExportBody" => {
            described["items"]["pattern"] = json!(DATASET_NAME);
        }
        "count" if schema == "ClickBody" => described["maximum"] = json!(u8::MAX),
        "method" if schema == "UrlBody" => described["enum"] = json!(["GET", "HEAD", null]),
        "network" | "policy" => {
            let is_optional = described["type"].as_array().is_some();
            let policy = json!({"$ref": "#/components/schemas/Network"});
            let text = described["description"].clone();
            *described = match is_optional {
                true => json!({"anyOf": [policy, {"type": "null"}], "description": text}),
                false => json!({"allOf": [policy], "description": text}),
            };
        }
        "storage" if described["example"] == "TMPFS" => {
            described["enum"] = json!(["TMPFS", "BIND", null]);
        }
        "datasets" if described["type"] == json!(["string", "null"]) => {
            described["enum"] = json!(["NONE", "LOCAL_RO", "API", "API_TMPFS", null]);
        }
        _ => {}
    }
}

/// The schema of a network policy.
fn network() -> Value {
    json!({
        "description": "Where code may go: nowhere, to every public address, or to hosts by name.",
        "oneOf": [
            {"type": "string", "enum": ["none", "open"]},
            {
                "type": "object",
                "required": ["allow"],
                "additionalProperties": false,
                "properties": {
                    "allow": {
                        "type": "array", "maxItems": 256, "items": {"type": "string"},
                        "description": "`example.org`, `*.example.com:443`, `10.0.0.5:8080`, `*`.",
                    },
                    "inject": {
                        "type": "array", "maxItems": 32, "items": injection(),
                        "description": "Headers that the server adds on the way.",
                    },
                },
            },
        ],
    })
}

fn injection() -> Value {
    json!({
        "type": "object",
        "required": ["host", "header", "value_from"],
        "additionalProperties": false,
        "properties": {
            "host": {"type": "string"},
            "header": {"type": "string"},
            "value_from": {"type": "string", "description": "A secret of the server's."},
            "tls": {"type": ["string", "null"], "description": "`terminate`"},
        },
    })
}

fn events() -> Value {
    // Without a type, because a client that reads single events sees objects, and one that reads
    // the whole body sees text.
    json!({
        "description": "Server-sent events: `exec`, `stdout`, `stderr`, `display`, `result`, \
            `error`, `input`, `artifacts` and, last, `done`. The id of an event is the position \
            after it.",
    })
}

/// A parameter of a URL is present or absent, but never null.
fn refine_parameters(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let (name, place) = (parameter["name"].clone(), parameter["in"].clone());
        let schema = &mut parameter["schema"];
        if let Some(kinds) = schema.get("type").and_then(Value::as_array) {
            let kind = kinds.iter().find(|kind| *kind != "null").cloned();
            schema["type"] = kind.unwrap_or_else(|| json!("string"));
        }
        match (place.as_str(), name.as_str()) {
            (Some("path"), Some("name")) => schema["pattern"] = json!(VOLUME_NAME),
            (Some("path"), Some("dataset")) => schema["pattern"] = json!(DATASET_NAME),
            (Some("path"), _) => schema["minLength"] = json!(1),
            (Some("query"), Some("state")) => {
                let names: Vec<&str> = Phase::ALL.iter().map(|phase| phase.name()).collect();
                schema["enum"] = json!(names);
            }
            (Some("query"), Some("archive")) => {
                schema["enum"] = json!(["tar", "tar.gz", "tgz", "zip"]);
            }
            (Some("query"), Some("purge")) => {
                schema["enum"] = json!(["", "true", "1", "false", "0"]);
            }
            (Some("query"), Some("language")) => schema["enum"] = json!(languages::all_names()),
            _ => {}
        }
    }
}

/// Responses of more than one kind.
fn refine_answers(path: &str, method: &str, operation: &mut Value) {
    let streams = json!({"schema": {"$ref": "#/components/schemas/ExecEvents"}});
    let answers = &mut operation["responses"];
    let is_action = path.starts_with("/v1/sessions/{id}/browser");
    if is_action || matches!((method, path), ("post", "/v1/run" | "/v1/sessions/{id}/exec")) {
        answers["200"]["content"]["text/event-stream"] = streams.clone();
    }
    if path.ends_with("/execs/{exec}/events") {
        answers["200"]["content"] = json!({"text/event-stream": streams});
    }
    if path.ends_with("/browser/screenshot") {
        answers["200"]["content"]["image/png"] = json!({});
        answers["200"]["headers"] = json!({"Belljar-Artifact": {
            "description": "With `Accept: image/png`: the id of the screenshot.",
            "schema": {"type": "string"},
        }});
    }
    if path == "/v1/sessions/{id}/files/{path}" && method == "get" {
        let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let mut content = Map::new();
        let kinds = ["octet-stream", "x-tar", "gzip", "zip"];
        content.extend(kinds.map(|kind| (format!("application/{kind}"), json!({}))));
        let listed = json!({"schema": {"anyOf": [schema("FilesBody"), schema("FileBody")]}});
        content.insert("application/json".into(), listed);
        content.insert("text/event-stream".into(), json!({}));
        answers["200"]["content"] = Value::Object(content);
        answers["206"]["content"] = json!({"application/octet-stream": {}});
    }
    if path == "/v1/sessions/{id}/files/{path}" && method == "put" {
        let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        answers["200"]["content"]["application/json"]["schema"] =
            json!({"anyOf": [schema("FileBody"), schema("UnpackedBody")]});
    }
    if path == "/artifacts/{id}" {
        for status in ["200", "206"] {
            // The media type is that of the artifact.
            answers[status]["content"] = json!({"*/*": {}});
        }
    }
}

/// An example request that works without changes.
pub(super) fn example(operation: &str) -> Option<Value> {
    Some(match operation {
        "sessions_create" => json!({
            "key": "conversation-7", "limits": {"memory": "512M", "cpus": 0.5}, "ttl": 3600,
            "metadata": {"user": "alice"},
        }),
        "sessions_extend" => json!({"ttl": 7200}),
        "sessions_hibernate" => json!({"force": false}),
        "sessions_fork" => json!({"count": 2}),
        "execs_exec" => json!({"code": "import math\nmath.sqrt(2)", "timeout": 10}),
        "execs_stdin" => json!({"data": "yes\n", "close": true}),
        "files_rename" => json!({"to": "results/table.csv", "copy": true}),
        "datasets_export" => json!({"datasets": ["sales.csv"]}),
        "datasets_stage" => json!({"dataset": "sales.csv"}),
        "volumes_create" => json!({"name": "models", "size": "64M"}),
        "runs_run" => json!({"code": "print(6 * 7)", "timeout": 10}),
        "artifacts_url" => json!({"method": "GET"}),
        "browser_goto" => json!({"url": "about:blank"}),
        "browser_evaluate" => json!({"expression": "1 + 1"}),
        _ => return None,
    })
}
