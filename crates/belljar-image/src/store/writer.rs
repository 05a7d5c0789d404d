//! Changes the store: one process at a time, and each change is complete or has no effect.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_sys::file_lock::FileLock;
use belljar_sys::{process, rootfs};

use super::{FORMAT, Image, ImageStore, Layer};
use crate::digest::HashingWriter;
use crate::oci::{self, Descriptor, ImageConfig, Manifest};
use crate::{ImageError, Name, OciDigest, Progress, skeleton};

/// How long layers without an image are kept: an interrupted pull is usually repeated.
const KEEP_UNFINISHED: Duration = Duration::from_secs(24 * 3600);

/// The PATH of an image that does not set one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug)]
pub struct Writer<'a> {
    store: &'a ImageStore,
    /// A directory only for this writer; removed when it is dropped.
    scratch: PathBuf,
    _lock: FileLock,
}

impl<'a> Writer<'a> {
    pub(super) fn open(
        store: &'a ImageStore,
        say: impl FnOnce(&str),
    ) -> Result<Writer<'a>, ImageError> {
        let directory = &store.directory;
        let private = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(ImageError::file(path))
        };
        private(directory)?;
        let path = directory.join("lock");
        let say = || say("Another command is changing images; waiting for it.");
        let lock = FileLock::open(&path, say).map_err(ImageError::file(&path))?;
        for name in ["blobs", "names", "roots", "partial"] {
            private(&directory.join(name))?;
        }
        let new = directory.join("new");
        // We hold the lock, so the process that left these files has ended.
        rootfs::remove_all(&new).map_err(ImageError::file(&new))?;
        let scratch = new.join(process::random_name());
        private(&scratch)?;
        let writer = Writer { store, scratch, _lock: lock };
        writer.sweep()?;
        Ok(writer)
    }

    #[must_use]
    pub fn store(&self) -> &ImageStore {
        self.store
    }

    /// A new directory, which is removed with this writer.
    pub fn scratch(&self) -> Result<PathBuf, ImageError> {
        let path = self.scratch.join(process::random_name());
        fs::create_dir(&path).map_err(ImageError::file(&path))?;
        Ok(path)
    }

    pub(crate) fn has_blob(&self, digest: &OciDigest) -> Option<u64> {
        fs::metadata(self.store.blob_path(digest)).ok().map(|found| found.len())
    }

    /// The file in which an interrupted download is continued.
    pub(crate) fn partial(&self, digest: &OciDigest) -> PathBuf {
        self.store.directory.join("partial").join(digest.hex())
    }

    /// Makes a complete file a blob. The caller has checked that it matches `digest`.
    pub(crate) fn adopt_blob(&self, file: &Path, digest: &OciDigest) -> Result<(), ImageError> {
        let failed = ImageError::file(file);
        File::open(file).and_then(|file| file.sync_all()).map_err(failed)?;
        let place = self.store.blob_path(digest);
        fs::rename(file, &place).map_err(ImageError::file(&place))
    }

    /// Stores a document as a blob.
    pub(crate) fn add_document(
        &self,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Descriptor, ImageError> {
        let descriptor = Descriptor::new(media_type, OciDigest::of(bytes), bytes.len() as u64);
        self.add_blob(bytes, None)?;
        Ok(descriptor)
    }

    /// Copies content to a new blob; fails if its digest is not the `expected` one.
    pub(crate) fn add_blob(
        &self,
        mut from: impl Read,
        expected: Option<&OciDigest>,
    ) -> Result<(OciDigest, u64), ImageError> {
        let path = self.scratch.join(process::random_name());
        let file = File::create_new(&path).map_err(ImageError::file(&path))?;
        let mut writer = HashingWriter::new(file);
        let copied = io::copy(&mut from, &mut writer).and_then(|_| writer.flush());
        let (_, digest, bytes) = match copied {
            Ok(()) => writer.finish(),
            Err(error) => {
                let _ = fs::remove_file(&path);
                return Err(crate::layer::read_error(error));
            }
        };
        if let Some(expected) = expected
            && *expected != digest
        {
            let _ = fs::remove_file(&path);
            let what = "a part of it".to_owned();
            return Err(ImageError::Digest { what, expected: *expected, found: digest });
        }
        if self.has_blob(&digest).is_some() {
            let _ = fs::remove_file(&path);
        } else {
            self.adopt_blob(&path, &digest)?;
        }
        Ok((digest, bytes))
    }

    /// Stores an image whose manifest, configuration and layers are all blobs: unpacks its root
    /// file system, then writes its record.
    pub fn commit(
        &self,
        name: Name,
        manifest: &OciDigest,
        source: String,
        progress: &dyn Progress,
    ) -> Result<Image, ImageError> {
        let bytes = self.store.read_blob(manifest)?;
        let broken = |cause| ImageError::Document { what: "manifest", cause };
        let document: Manifest = serde_json::from_slice(&bytes).map_err(broken)?;
        let config = ImageConfig::parse(&self.store.read_blob(&document.config.digest)?)?;
        check_platform(&config)?;
        let contents = &config.rootfs.diff_ids;
        if contents.len() != document.layers.len() {
            return Err(ImageError::Refused(format!(
                "its manifest has {} layers and its configuration {}",
                document.layers.len(),
                contents.len()
            )));
        }
        let layers: Vec<Layer> = document
            .layers
            .iter()
            .zip(contents)
            .map(|(blob, content)| Layer { blob: blob.clone(), content: *content })
            .collect();
        let root = OciDigest::of_chain(contents)
            .ok_or_else(|| ImageError::Refused("it has no layers".into()))?;
        let unpacked = self.store.unpack(&self.scratch()?, &root, &layers, progress)?;
        let env = config.env();
        let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_str());
        let mut image = Image {
            format: FORMAT,
            name,
            source,
            added_ms: now_ms(),
            manifest: *manifest,
            config: document.config,
            layers,
            root,
            architecture: config.architecture.clone(),
            user: config.config.user.clone(),
            workdir: config.config.working_dir.clone(),
            python: None,
            preload: config.label(oci::LABEL_PRELOAD).map(words),
            unpacked,
            env: env.clone(),
        };
        let held = self.store.hold(&image)?;
        let rootfs = rootfs::Rootfs::open(held.path()).map_err(ImageError::file(held.path()))?;
        image.python = skeleton::find_python(&rootfs, path.unwrap_or(DEFAULT_PATH))?;
        self.put_record(&image)?;
        Ok(image)
    }

    /// Stores an image under another name.
    pub fn rename(&self, image: &Image, name: Name) -> Result<Image, ImageError> {
        let renamed = Image { name, added_ms: now_ms(), ..image.clone() };
        self.put_record(&renamed)?;
        Ok(renamed)
    }

    /// Removes a name, and the parts that no other image needs. Returns whether a sandbox still uses its root file system,
    /// which is then removed later.
    pub fn remove(&self, name: &Name) -> Result<bool, ImageError> {
        let image = self.store.find(name)?;
        let path = self.store.names_dir().join(name.file_name());
        fs::remove_file(&path).map_err(ImageError::file(&path))?;
        rootfs::sync_directory(&self.store.names_dir()).map_err(ImageError::file(&path))?;
        self.forget(&image)
    }

    fn put_record(&self, image: &Image) -> Result<(), ImageError> {
        let place = self.store.names_dir().join(image.name.file_name());
        let before = super::read_record(&place)?;
        let fresh = self.scratch.join(process::random_name());
        let text = serde_json::to_vec_pretty(image).expect("records serialize to JSON");
        let written = File::create_new(&fresh)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
        written.map_err(ImageError::file(&fresh))?;
        // Everything that the record refers to must be on the disk before the record is.
        for directory in ["blobs", "roots"] {
            let directory = self.store.directory.join(directory);
            rootfs::sync_directory(&directory).map_err(ImageError::file(&directory))?;
        }
        fs::rename(&fresh, &place).map_err(ImageError::file(&place))?;
        rootfs::sync_directory(&self.store.names_dir()).map_err(ImageError::file(&place))?;
        if let Some(before) = before {
            self.forget(&before)?;
        }
        Ok(())
    }

    /// Removes the parts of an image that no name refers to.
    fn forget(&self, image: &Image) -> Result<bool, ImageError> {
        let (blobs, roots) = self.referenced()?;
        for blob in image.blobs().filter(|blob| !blobs.contains(*blob)) {
            let path = self.store.blob_path(blob);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ImageError::File { path, cause: error });
                }
                _ => {}
            }
        }
        if roots.contains(&image.root) {
            return Ok(false);
        }
        Ok(!self.store.remove_root(&image.root, &self.scratch)?)
    }

    fn referenced(&self) -> Result<(HashSet<OciDigest>, HashSet<OciDigest>), ImageError> {
        let images = self.store.list()?;
        let blobs = images.iter().flat_map(Image::blobs).cloned().collect();
        let roots = images.iter().map(|image| image.root).collect();
        Ok((blobs, roots))
    }

    /// Removes files that killed processes left, and roots whose sandboxes have ended.
    fn sweep(&self) -> Result<(), ImageError> {
        let (blobs, roots) = self.referenced()?;
        for digest in digests_in(&self.store.roots_dir())? {
            if !roots.contains(&digest) {
                self.store.remove_root(&digest, &self.scratch)?;
            }
        }
        for directory in ["blobs", "partial"].map(|name| self.store.directory.join(name)) {
            for digest in digests_in(&directory)? {
                let path = directory.join(digest.hex());
                let age = fs::metadata(&path).and_then(|found| found.modified());
                let age = age.ok().and_then(|then| then.elapsed().ok()).unwrap_or_default();
                if age > KEEP_UNFINISHED && !blobs.contains(&digest) {
                    let _ = fs::remove_file(path);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let _ = rootfs::remove_all(&self.scratch);
    }
}

fn digests_in(directory: &Path) -> Result<Vec<OciDigest>, ImageError> {
    let entries = fs::read_dir(directory).map_err(ImageError::file(directory))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| OciDigest::from_hex(&name)).collect())
}

fn check_platform(config: &ImageConfig) -> Result<(), ImageError> {
    let (own, its) = (oci::this_architecture(), config.architecture.as_str());
    // Some tools set neither architecture nor system.
    if (its.is_empty() || its == own) && (config.os.is_empty() || config.os == "linux") {
        return Ok(());
    }
    let has = format!("{}/{its}", config.os);
    Err(ImageError::Platform { wanted: format!("linux/{own}"), has })
}

/// Splits text at commas and spaces.
fn words(text: &str) -> Vec<String> {
    let words = text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
