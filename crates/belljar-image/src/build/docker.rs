//! Loads an image into a container engine: sends its layers in the format of `docker load`.

use std::io::{self, Write};
use std::sync::Arc;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::mpsc;

use crate::layer::{self, Compression};
use crate::{Image, ImageError, ImageStore, Progress};

const DEFAULT_SOCKET: &str = "unix:///var/run/docker.sock";

/// An engine unpacks the image while it loads it; large images take minutes.
const LOAD_TIMEOUT_S: u64 = 1800;

/// How many pieces may wait for the engine.
const PIECES: usize = 8;
const PIECE_BYTES: usize = 256 << 10;

/// The result of loading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    Yes,
    /// No engine answers; the text says why.
    NoEngine(String),
}

/// Loads an image into the container engine at `address`, or at the usual socket, if one answers.
pub async fn load_into_docker(
    store: &ImageStore,
    image: &Image,
    address: Option<&str>,
    progress: &dyn Progress,
) -> Result<Loaded, ImageError> {
    let address = address.unwrap_or(DEFAULT_SOCKET);
    let docker = match address.strip_prefix("unix://") {
        Some(path) => Docker::connect_with_unix(path, LOAD_TIMEOUT_S, API_DEFAULT_VERSION),
        None => Docker::connect_with_http(address, LOAD_TIMEOUT_S, API_DEFAULT_VERSION),
    };
    let asked = match docker {
        Ok(docker) => docker.ping().await.map(|_| docker),
        Err(error) => Err(error),
    };
    let docker = match asked {
        Ok(docker) => docker,
        Err(error) => return Ok(Loaded::NoEngine(error.to_string())),
    };
    progress.begin(&format!("Loading {} into the container engine", image.name), None);
    let (pieces, mut receiver) = mpsc::channel(PIECES);
    let (store, image) = (Arc::new(store.clone()), Arc::new(image.clone()));
    let writing = {
        let (store, image) = (Arc::clone(&store), Arc::clone(&image));
        tokio::task::spawn_blocking(move || {
            let writer = Pieces { sender: pieces, waiting: Vec::new() };
            write_archive(&store, &image, writer)
        })
    };
    let archive = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    let archive = archive.map(Ok::<_, io::Error>);
    let options = ImportImageOptionsBuilder::default().quiet(true).build();
    let mut answers =
        Box::pin(docker.import_image(options, bollard::body_try_stream(archive), None));
    let mut refused = None;
    while let Some(answer) = answers.next().await {
        if let Err(error) = answer {
            refused.get_or_insert(error);
        }
    }
    drop(answers);
    let written = writing.await.unwrap_or_else(|panic| {
        Err(ImageError::Docker(format!("failed to write the archive: {panic}")))
    });
    match refused {
        Some(error) => {
            Err(ImageError::Docker(format!("the container engine did not take the image: {error}")))
        }
        None => written.map(|()| Loaded::Yes),
    }
}

fn write_archive(store: &ImageStore, image: &Image, mut writer: Pieces) -> Result<(), ImageError> {
    let failed = |cause| ImageError::File { path: "the archive for the engine".into(), cause };
    let mut archive = tar::Builder::new(&mut writer);
    let mut add = |name: &str, size: u64, content: &mut dyn io::Read| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(size);
        archive.append_data(&mut header, name, content).map_err(failed)
    };
    let config = store.read_blob(&image.config.digest)?;
    let config_name = format!("{}.json", image.config.digest.hex());
    add(&config_name, config.len() as u64, &mut &config[..])?;
    let mut layers = Vec::new();
    for layer in &image.layers {
        let name = format!("{}/layer.tar", layer.content.hex());
        // A layer that occurs twice is written once.
        if !layers.contains(&name) {
            let open = || store.open_blob(&layer.blob.digest);
            match layer::open(open()?, u64::MAX)? {
                // Older engines do not support zstd.
                (mut content, Compression::Zstd) => {
                    let size =
                        io::copy(&mut content, &mut io::sink()).map_err(layer::read_error)?;
                    let (mut content, _) = layer::open(open()?, u64::MAX)?;
                    add(&name, size, &mut content)?;
                }
                _ => add(&name, layer.blob.size, &mut open()?)?,
            }
        }
        layers.push(name);
    }
    let manifest = json!([{
        "Config": config_name,
        "RepoTags": [image.name.as_str()],
        "Layers": layers,
    }]);
    let manifest = manifest.to_string();
    add("manifest.json", manifest.len() as u64, &mut manifest.as_bytes())?;
    archive.finish().map_err(failed)?;
    drop(archive);
    writer.flush().map_err(failed)
}

/// A writer that sends its data in pieces; it waits while the engine is busy with earlier pieces.
struct Pieces {
    sender: mpsc::Sender<bytes::Bytes>,
    waiting: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.waiting);
        let sent = self.sender.blocking_send(piece.into());
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
