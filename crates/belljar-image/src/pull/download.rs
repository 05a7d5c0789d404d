//! Downloads one layer to disk: in constant memory, and hashed while it is received. An interrupted
//! download is continued, by the same pull or by a later one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use oci_client::Reference;
use oci_client::client::BlobResponse;

use super::{Registry, meaning, short};
use crate::digest::Hash;
use crate::oci::Descriptor;
use crate::store::Writer;
use crate::{ImageError, Progress};

/// Pauses between attempts. An attempt that received data resets the count.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

pub(super) async fn fetch(
    registry: &Registry,
    reference: &Reference,
    writer: &Writer<'_>,
    part: &Descriptor,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    progress.begin(&format!("Pulling {}", short(&part.digest)), Some(part.size));
    let path = writer.partial(&part.digest);
    let mut download = Download::resume(&path, part)?;
    let mut failures = 0;
    while download.length < part.size {
        let before = download.length;
        let Err(error) = download.go_on(registry, reference, progress).await else { continue };
        if !is_worth_another_try(&error) {
            return Err(error);
        }
        failures = if download.length > before { 1 } else { failures + 1 };
        let Some(pause) = PAUSES.get(failures - 1) else { return Err(error) };
        progress.say(&format!("{} was cut off; going on", short(&part.digest)));
        tokio::time::sleep(*pause).await;
    }
    download.file.flush().map_err(ImageError::file(&path))?;
    let found = download.hash.finish();
    if found != part.digest {
        // The content is wrong, so continuing it is useless.
        let _ = std::fs::remove_file(&path);
        let what = "what the registry sent".to_owned();
        return Err(ImageError::Digest { what, expected: part.digest, found });
    }
    writer.adopt_blob(&path, &part.digest)
}

struct Download<'a> {
    part: &'a Descriptor,
    path: &'a Path,
    file: File,
    hash: Hash,
    length: u64,
}

impl<'a> Download<'a> {
    /// Continues with the data of an earlier attempt.
    fn resume(path: &'a Path, part: &'a Descriptor) -> Result<Download<'a>, ImageError> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(ImageError::file(path))?;
        let (mut hash, mut length) = (Hash::default(), 0);
        let mut buffer = vec![0; 256 << 10];
        loop {
            match file.read(&mut buffer).map_err(ImageError::file(path))? {
                0 => break,
                n => {
                    hash.update(&buffer[..n]);
                    length += n as u64;
                }
            }
        }
        let mut download = Download { part, path, file, hash, length };
        if length > part.size {
            download.start_again()?;
        }
        Ok(download)
    }

    fn start_again(&mut self) -> Result<(), ImageError> {
        self.file.set_len(0).map_err(ImageError::file(self.path))?;
        (self.hash, self.length) = (Hash::default(), 0);
        Ok(())
    }

    async fn go_on(
        &mut self,
        registry: &Registry,
        reference: &Reference,
        progress: &dyn Progress,
    ) -> Result<(), ImageError> {
        let digest = self.part.digest.to_string();
        let client = &registry.client;
        let failed = |error| meaning(&registry.name, error);
        let mut stream = if self.length == 0 {
            client.pull_blob_stream(reference, digest.as_str()).await.map_err(failed)?
        } else {
            let rest = client
                .pull_blob_stream_partial(reference, digest.as_str(), self.length, None)
                .await;
            match rest.map_err(failed)? {
                BlobResponse::Partial(stream) => stream,
                // The registry does not support ranges and sends the whole layer.
                BlobResponse::Full(stream) => {
                    self.start_again()?;
                    stream
                }
            }
        };
        while self.length < self.part.size {
            let Some(chunk) = stream.next().await else {
                let cause = io::Error::from(io::ErrorKind::UnexpectedEof).into();
                return Err(ImageError::Unreachable { registry: registry.name.clone(), cause });
            };
            let chunk = chunk.map_err(|cause| ImageError::Unreachable {
                registry: registry.name.clone(),
                cause: cause.into(),
            })?;
            if self.length + chunk.len() as u64 > self.part.size {
                let _ = std::fs::remove_file(self.path);
                let message = "the registry sends more than it announced".to_owned();
                return Err(ImageError::Refused(message));
            }
            self.file.write_all(&chunk).map_err(ImageError::file(self.path))?;
            self.hash.update(&chunk);
            self.length += chunk.len() as u64;
            progress.at(self.length);
        }
        Ok(())
    }
}

/// Whether the connection failed. A registry that refused a request would refuse it again.
fn is_worth_another_try(error: &ImageError) -> bool {
    matches!(error, ImageError::Unreachable { .. })
}
