//! Connects to the container engine, and explains its errors.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, Docker};
use tokio::time::timeout;

use crate::error::ContainerEngineError;

/// Where engines listen by default.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// Seconds that an engine may take for one answer: making a container on a busy disk can take long.
const ANSWER_TIMEOUT_S: u64 = 120;

/// How long an engine may take to answer a ping, which needs no work.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// After this long without an answer, a ping checks whether the engine still answers.
const PING_AFTER: Duration = Duration::from_secs(3);

/// A client for the engine at `address`, or at the usual one. Does not connect yet.
pub(super) fn connect(address: Option<&str>) -> Result<(Docker, String), ContainerEngineError> {
    let address = address.map_or_else(|| format!("unix://{DEFAULT_SOCKET}"), str::to_owned);
    let docker = match address.strip_prefix("unix://") {
        // The default constructor checks that the socket exists, which would hide why it cannot be used.
        Some(path) => Docker::connect_with_unix(path, ANSWER_TIMEOUT_S, API_DEFAULT_VERSION),
        None => Docker::connect_with_http(&address, ANSWER_TIMEOUT_S, API_DEFAULT_VERSION),
    };
    match docker {
        Ok(docker) => Ok((docker, address)),
        Err(error) => Err(unreachable(address, &error)),
    }
}

/// Connects to the engine. Returns the client, the address, and what the engine reports about itself.
pub(super) async fn open(
    address: Option<&str>,
) -> Result<(Docker, String, SystemInfo), ContainerEngineError> {
    let (docker, address) = connect(address)?;
    ping(&docker, &address).await?;
    let explain = |error| explain(&address, "report its version", error);
    let asking = docker.clone();
    let negotiated = answer(&asking, &address, docker.negotiate_version()).await?;
    let docker = negotiated.map_err(explain)?;
    let info = answer(&docker, &address, docker.info()).await?.map_err(explain)?;
    Ok((docker, address, info))
}

/// Checks that the engine answers, with a short time limit.
pub(super) async fn ping(docker: &Docker, address: &str) -> Result<(), ContainerEngineError> {
    match timeout(PING_TIMEOUT, docker.ping()).await {
        Ok(answer) => answer.map(drop).map_err(|error| explain(address, "answer", error)),
        Err(_) => Err(ContainerEngineError::Hangs {
            address: address.into(),
            seconds: PING_TIMEOUT.as_secs(),
        }),
    }
}

/// Waits for an answer as long as the engine answers pings. A hanging engine is detected long before
/// [`ANSWER_TIMEOUT_S`].
pub(super) async fn answer<T>(
    docker: &Docker,
    address: &str,
    answer: impl Future<Output = T>,
) -> Result<T, ContainerEngineError> {
    let mut answer = std::pin::pin!(answer);
    loop {
        match timeout(PING_AFTER, &mut answer).await {
            Ok(answer) => return Ok(answer),
            Err(_) => ping(docker, address).await?,
        }
    }
}

/// Turns the failure of `doing` into an error that says what to do.
pub(super) fn explain(address: &str, doing: &'static str, error: Error) -> ContainerEngineError {
    match error {
        Error::DockerResponseServerError { message, .. } => refused(doing, message),
        Error::DockerStreamError { error } => refused(doing, error),
        error if is_about_connecting(&error) => unreachable(address.to_owned(), &error),
        error => ContainerEngineError::Refused { doing, message: error.to_string() },
    }
}

fn refused(doing: &'static str, message: String) -> ContainerEngineError {
    let mentions = |words: &str| message.to_ascii_lowercase().contains(words);
    if mentions("no such image") || mentions("image not known") {
        let name = message.rsplit(": ").next().unwrap_or(&message).trim();
        return ContainerEngineError::NoImage(name.to_owned());
    }
    if mentions("unknown or invalid runtime")
        || mentions("unknown runtime")
        || mentions("invalid runtime")
    {
        let name = message.rsplit(": ").next().unwrap_or(&message).trim();
        return ContainerEngineError::NoRuntime(name.to_owned());
    }
    if mentions("could not select device driver") || mentions("no known gpu") {
        return ContainerEngineError::NoGpu;
    }
    if mentions("no space left on device") {
        return ContainerEngineError::NoSpace;
    }
    ContainerEngineError::Refused { doing, message }
}

/// Whether the container does not exist any more.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404 | 409, .. })
}

fn is_about_connecting(error: &Error) -> bool {
    matches!(
        error,
        Error::HyperLegacyError { .. }
            | Error::HyperResponseError { .. }
            | Error::SocketNotFoundError(_)
            | Error::IOError { .. }
            | Error::RequestTimeoutError
    )
}

fn unreachable(address: String, error: &Error) -> ContainerEngineError {
    let advice = match io_kind(error) {
        Some(io::ErrorKind::PermissionDenied) => {
            "you are not allowed to use it: run as root, or join the group of its socket \
             (`usermod -aG docker $USER`, then log in again)"
        }
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            "start it (`systemctl start docker`), or set DOCKER_HOST to its address"
        }
        _ => "check that it runs, and that DOCKER_HOST is its address",
    };
    ContainerEngineError::Unreachable { address, advice }
}

fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    if let Error::SocketNotFoundError(_) = error {
        return Some(io::ErrorKind::NotFound);
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = inner.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(message: &str) -> String {
        let error = Error::DockerResponseServerError { status_code: 500, message: message.into() };
        explain("unix:///x", "make a container", error).to_string()
    }

    #[test]
    fn what_engines_say_is_understood() {
        assert!(meaning("No such image: sandbox:latest").contains("no image `sandbox:latest`"));
        assert!(meaning("Unknown runtime specified runsc").contains("no runtime"));
        assert!(
            meaning("could not select device driver \"\" with capabilities: [[gpu]]")
                .contains("no GPU")
        );
        assert!(meaning("write /x: no space left on device").contains("is full"));
        assert!(meaning("odd").contains("failed to make a container: odd"));
    }
}
