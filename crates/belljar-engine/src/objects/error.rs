//! Errors of an object store. They name the setting and never the secret key.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("BELLJAR_BLOBS_URL is `{0}`; it must be s3://bucket/prefix")]
    Url(String),
    #[error("`{0}` is not a valid key of an object")]
    Key(String),
    #[error("failed to prepare access to `{place}` (BELLJAR_BLOBS_URL)")]
    Setup {
        place: String,
        #[source]
        cause: Box<object_store::Error>,
    },
    #[error("the bucket of `{place}` (BELLJAR_BLOBS_URL) does not exist; create it first")]
    NoBucket { place: String },
    #[error("`{place}` (BELLJAR_BLOBS_URL) has no object `{key}`")]
    NotFound { key: String, place: String },
    #[error(
        "`{place}` (BELLJAR_BLOBS_URL) refused to {action} `{key}`: {code}; check AWS_ACCESS_KEY_ID, \
         AWS_SECRET_ACCESS_KEY and the rights on the bucket"
    )]
    Refused { action: &'static str, key: String, place: String, code: String },
    #[error("the object `{key}` in `{place}` (BELLJAR_BLOBS_URL) is shorter than it was")]
    Truncated { key: String, place: String },
    #[error("failed to {action} `{key}` in `{place}` (BELLJAR_BLOBS_URL)")]
    Failed {
        action: &'static str,
        key: String,
        place: String,
        #[source]
        cause: Box<object_store::Error>,
    },
    #[error("failed to read or write the local copy of `{key}`")]
    Local {
        key: String,
        #[source]
        cause: io::Error,
    },
}

impl ObjectError {
    pub(super) fn of(
        action: &'static str,
        key: &str,
        place: &str,
        cause: object_store::Error,
    ) -> ObjectError {
        let (key, place) = (key.to_owned(), place.to_owned());
        let answer = cause.to_string();
        let code = code_in(&answer);
        if code == Some("NoSuchBucket") {
            return ObjectError::NoBucket { place };
        }
        if is_refusal(&cause) {
            // The rest of the answer has the signed text of the request, which helps no reader.
            let code = code.unwrap_or("access denied").to_owned();
            return ObjectError::Refused { action, key, place, code };
        }
        match cause {
            object_store::Error::NotFound { .. } => ObjectError::NotFound { key, place },
            cause => ObjectError::Failed { action, key, place, cause: Box::new(cause) },
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            ObjectError::Url(_) | ObjectError::Key(_) => io::ErrorKind::InvalidInput,
            ObjectError::NotFound { .. } => io::ErrorKind::NotFound,
            ObjectError::Refused { .. } => io::ErrorKind::PermissionDenied,
            ObjectError::Truncated { .. } => io::ErrorKind::InvalidData,
            ObjectError::Local { cause, .. } => cause.kind(),
            ObjectError::NoBucket { .. }
            | ObjectError::Setup { .. }
            | ObjectError::Failed { .. } => io::ErrorKind::Other,
        }
    }
}

impl From<ObjectError> for io::Error {
    fn from(error: ObjectError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

fn is_refusal(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => true,
        // A refused list is reported like any other failure.
        object_store::Error::Generic { .. } => {
            let text = error.to_string();
            text.contains("403 Forbidden") || text.contains("401 Unauthorized")
        }
        _ => false,
    }
}

/// The error code of an answer in XML.
fn code_in(answer: &str) -> Option<&str> {
    let (_, rest) = answer.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    (!code.is_empty() && code.chars().all(|char| char.is_ascii_alphanumeric())).then_some(code)
}
