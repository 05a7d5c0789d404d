//! Prepares images of the engine for sandboxes.
//!
//! The root of a sandbox is read-only, and some images lack what every sandbox has: the links `/work` and `/workspace`, and a
//! name for its user. A thin layer adds them, once per image; nothing of the image is executed for it.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::{ContainerConfig, ContainerCreateBody};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, ContainerArchiveInfoOptionsBuilder, CreateContainerOptions,
    DownloadFromContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use futures_util::{StreamExt, TryStreamExt};

use super::engine;
use crate::error::ContainerEngineError;
use crate::spec::paths;
use crate::user::USER_ID;

/// The label of images that need no preparation: our own, and prepared ones.
pub(super) const READY: &str = "belljar.image";

/// Modules that the zygote of an image imports, separated by commas.
const PRELOAD: &str = "belljar.preload";

/// The repository of prepared images; the tag is the id of the original.
const PREPARED: &str = "belljar/prepared";

/// The most that is read of a list of users.
const MAX_PASSWD: usize = 1 << 20;

/// An image that sandboxes can be made from.
#[derive(Debug, Clone)]
pub(super) struct ReadyImage {
    pub(super) id: String,
    /// The environment of the image.
    pub(super) env: Vec<(String, String)>,
    pub(super) preload: Option<Vec<String>>,
}

pub(super) async fn ready(
    docker: &Docker,
    address: &str,
    name: &str,
) -> Result<ReadyImage, ContainerEngineError> {
    let image = inspect(docker, address, name).await?;
    if image.is_ready {
        return Ok(image.ready);
    }
    let tag: String = image.ready.id.trim_start_matches("sha256:").chars().take(32).collect();
    let prepared = format!("{PREPARED}:{tag}");
    if let Ok(found) = inspect(docker, address, &prepared).await
        && found.is_ready
    {
        return Ok(found.ready);
    }
    tracing::info!("preparing the image {name} for sandboxes");
    prepare(docker, &image.ready.id, &tag)
        .await
        .map_err(|error| engine::explain(address, "prepare the image", error))?;
    Ok(inspect(docker, address, &prepared).await?.ready)
}

struct InspectedImage {
    ready: ReadyImage,
    is_ready: bool,
}

async fn inspect(
    docker: &Docker,
    address: &str,
    name: &str,
) -> Result<InspectedImage, ContainerEngineError> {
    let seen = docker.inspect_image(name).await.map_err(|error| match error {
        bollard::errors::Error::DockerResponseServerError { status_code: 404, .. } => {
            ContainerEngineError::NoImage(name.to_owned())
        }
        error => engine::explain(address, "look at the image", error),
    })?;
    let config = seen.config.unwrap_or_default();
    let labels = config.labels.unwrap_or_default();
    let env = config.env.unwrap_or_default();
    let split = |entry: String| entry.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    let modules = |list: &String| {
        list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    Ok(InspectedImage {
        is_ready: labels.contains_key(READY),
        ready: ReadyImage {
            id: seen.id.unwrap_or_else(|| name.to_owned()),
            env: env.into_iter().filter_map(split).collect(),
            preload: labels.get(PRELOAD).map(modules),
        },
    })
}

async fn prepare(docker: &Docker, image: &str, tag: &str) -> Result<(), bollard::errors::Error> {
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        // Never started, but an image without a command needs one.
        entrypoint: Some(vec!["/none".to_owned()]),
        ..ContainerCreateBody::default()
    };
    let container = docker.create_container(None::<CreateContainerOptions>, body).await?.id;
    let made = layer(docker, &container, tag).await;
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    let _ = docker.remove_container(&container, Some(force)).await;
    made
}

async fn layer(docker: &Docker, container: &str, tag: &str) -> Result<(), bollard::errors::Error> {
    let mut archive = tar::Builder::new(Vec::new());
    for (link, target) in [("work", paths::SESSION), ("workspace", paths::SESSION)] {
        if !exists(docker, container, &format!("/{link}")).await? {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            archive.append_link(&mut header, link, target)?;
        }
    }
    let users = [
        ("etc/passwd", format!("belljar:x:{USER_ID}:{USER_ID}:belljar:/session:/bin/bash\n")),
        ("etc/group", format!("belljar:x:{USER_ID}:\n")),
    ];
    for (path, line) in users {
        let before = read(docker, container, &format!("/{path}")).await;
        if let Some(contents) = with_user(&before, &line) {
            let mut header = tar::Header::new_gnu();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, contents.as_bytes())?;
        }
    }
    let into_root = UploadToContainerOptionsBuilder::new().path("/").build();
    let archive = bollard::body_full(archive.into_inner()?.into());
    docker.upload_to_container(container, Some(into_root), archive).await?;
    let as_image = CommitContainerOptionsBuilder::new()
        .container(container)
        .repo(PREPARED)
        .tag(tag)
        .pause(false)
        .comment("a sandbox's links and user")
        .build();
    let label = HashMap::from([(READY.to_owned(), "prepared".to_owned())]);
    let config = ContainerConfig { labels: Some(label), ..ContainerConfig::default() };
    docker.commit_container(as_image, config).await.map(|_| ())
}

async fn exists(
    docker: &Docker,
    container: &str,
    path: &str,
) -> Result<bool, bollard::errors::Error> {
    let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
    match docker.get_container_archive_info(container, Some(options)).await {
        Ok(_) => Ok(true),
        Err(error) if engine::is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file of the image; empty if there is none.
async fn read(docker: &Docker, container: &str, path: &str) -> String {
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut pieces = docker.download_from_container(container, Some(options)).boxed();
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = pieces.try_next().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() > MAX_PASSWD {
            return String::new();
        }
    }
    let mut text = String::new();
    let mut archive = tar::Archive::new(bytes.as_slice());
    if let Ok(mut entries) = archive.entries()
        && let Some(Ok(mut entry)) = entries.next()
    {
        let _ = std::io::Read::read_to_string(&mut entry, &mut text);
    }
    text
}

/// The list with a line for our user; none if the id has a name already.
fn with_user(list: &str, line: &str) -> Option<String> {
    let id = USER_ID.to_string();
    if list.lines().any(|line| line.split(':').nth(2) == Some(&id)) {
        return None;
    }
    let newline = if list.is_empty() || list.ends_with('\n') { "" } else { "\n" };
    Some(format!("{list}{newline}{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_added_unless_there_is_one() {
        let line = "belljar:x:1000:1000::/session:/bin/sh\n";
        let root = "root:x:0:0:root:/root:/bin/sh";
        assert_eq!(with_user(root, line), Some(format!("{root}\n{line}")));
        assert_eq!(with_user("", line), Some(line.to_owned()));
        assert_eq!(with_user("node:x:1000:1000::/home/node:/bin/bash\n", line), None);
    }
}
