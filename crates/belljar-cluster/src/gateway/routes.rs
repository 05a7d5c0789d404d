//! Decides from method and path where a request goes.

use axum::http::Method;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// To the node that owns this session.
    Session(String),
    /// To the owner of the session that the JSON body names in `session_id`.
    SessionInBody,
    /// To the owner of the session with the `key` in the JSON body, or to a node with room.
    NewSession,
    /// To a node with room, or with the volumes in the JSON body; what it creates ends with the request.
    Run,
    /// To the node that has this volume.
    Volume(String),
    /// To any node: all of them have the same records.
    AnyNode,
    /// The gateway answers itself.
    Own(Own),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    Health,
    Ready,
    Metrics,
    Document,
}

#[must_use]
pub(super) fn target(method: &Method, path: &str) -> Target {
    let is_post = method == Method::POST;
    match path {
        "/healthz" => Target::Own(Own::Health),
        "/readyz" => Target::Own(Own::Ready),
        "/metrics" => Target::Own(Own::Metrics),
        "/openapi.json" => Target::Own(Own::Document),
        "/v1/sessions" if is_post => Target::NewSession,
        "/create_session" if is_post => Target::NewSession,
        "/v1/run" if is_post => Target::Run,
        "/execute" | "/cleanup" if is_post => Target::SessionInBody,
        _ => {
            let session = || named_after(path, "/v1/sessions/").map(Target::Session);
            let volume = || named_after(path, "/v1/volumes/").map(Target::Volume);
            session().or_else(volume).unwrap_or(Target::AnyNode)
        }
    }
}

/// What a path names after this prefix, such as the session in `/v1/sessions/{id}` and below.
fn named_after(path: &str, prefix: &str) -> Option<String> {
    let rest = path.strip_prefix(prefix)?;
    let name = rest.split('/').next().filter(|name| !name.is_empty())?;
    decoded(name)
}

/// Resolves percent-encoding, as the node does; `None` if it is not valid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(method: &str, path: &str) -> Target {
        target(&method.parse().unwrap(), path)
    }

    fn session(id: &str) -> Target {
        Target::Session(id.to_owned())
    }

    #[test]
    fn requests_for_a_session_go_to_its_owner() {
        for path in [
            "/v1/sessions/ses_1",
            "/v1/sessions/ses_1/",
            "/v1/sessions/ses_1/exec",
            "/v1/sessions/ses_1/execs/exe_2/events",
            "/v1/sessions/ses_1/files/a/b%2Fc",
            "/v1/sessions/ses%5F1/terminal",
        ] {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] {
                assert_eq!(to(method, path), session("ses_1"), "{path}");
            }
        }
    }

    #[test]
    fn the_others_go_where_they_can_be_answered() {
        assert_eq!(to("POST", "/v1/sessions"), Target::NewSession);
        assert_eq!(to("POST", "/create_session"), Target::NewSession);
        assert_eq!(to("POST", "/execute"), Target::SessionInBody);
        assert_eq!(to("POST", "/cleanup"), Target::SessionInBody);
        assert_eq!(to("POST", "/v1/run"), Target::Run);
        assert_eq!(to("GET", "/healthz"), Target::Own(Own::Health));
        for method in ["GET", "DELETE"] {
            assert_eq!(to(method, "/v1/volumes/my%2Ev"), Target::Volume("my.v".to_owned()));
        }
        for path in [
            "/v1/sessions",
            "/v1/sessions/",
            "/v1/sessions/%zz",
            "/v1/sessions/%F",
            "/v1/artifacts/art_1",
            "/artifacts/art_1",
            "/v1/usage",
            "/v1/volumes",
            "/v1/volumes/",
            "/nothing",
        ] {
            assert_eq!(to("GET", path), Target::AnyNode, "{path}");
        }
    }

    /// A route that is added to the API must be added here, if it is for one session.
    #[test]
    fn every_path_of_the_document_with_a_session_is_routed_by_it() {
        let document = belljar_api::openapi();
        let paths = document["paths"].as_object().unwrap();
        for path in paths.keys() {
            let is_of_session = path.starts_with("/v1/sessions/{id}");
            let routed = to("POST", &path.replace("{id}", "ses_1"));
            assert_eq!(matches!(routed, Target::Session(_)), is_of_session, "{path}");
        }
    }
}
