//! Decompresses a layer, with limits on its size.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::{ImageError, limits};

/// The compression of a layer, by its first bytes. The media type may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub(crate) fn of(head: &[u8]) -> Result<Compression, ImageError> {
        let unsupported = |name: &str| {
            Err(ImageError::Unsupported(format!("it is compressed by {name}; use gzip or zstd")))
        };
        match head {
            [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Ok(Compression::Zstd)
            }
            [b'B', b'Z', b'h', ..] => unsupported("bzip2"),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => unsupported("xz"),
            _ => Ok(Compression::None),
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Compression::None => crate::oci::LAYER,
            Compression::Gzip => crate::oci::LAYER_GZIP,
            Compression::Zstd => crate::oci::LAYER_ZSTD,
        }
    }
}

/// Decompresses a layer. Reading fails after `budget` bytes, or if the compression ratio is too
/// large.
pub(crate) fn open<'a>(
    packed: impl Read + 'a,
    budget: u64,
) -> Result<(Box<dyn Read + 'a>, Compression), ImageError> {
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { inner: packed, count: Rc::clone(&taken) };
    let mut packed = BufReader::with_capacity(64 << 10, counted);
    let compression = Compression::of(packed.fill_buf().map_err(ImageError::Read)?)?;
    let inner: Box<dyn Read + 'a> = match compression {
        Compression::None => Box::new(packed),
        Compression::Gzip => Box::new(MultiGzDecoder::new(packed)),
        Compression::Zstd => {
            Box::new(Zstd { frame: FrameDecoder::new(), is_in_frame: false, packed })
        }
    };
    Ok((Box::new(LimitedReader { inner, taken, given: 0, budget }), compression))
}

/// The error for an archive that would fill the disk.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Exceeded(String);

/// The meaning of a read error.
pub(crate) fn read_error(error: io::Error) -> ImageError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Exceeded>()) {
        Some(Exceeded(why)) => ImageError::TooMuch(why.clone()),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageError::Archive("it is cut off".into())
        }
        None => ImageError::Read(error),
    }
}

struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.count.set(self.count.get() + n as u64);
        Ok(n)
    }
}

struct LimitedReader<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
    given: u64,
    budget: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.given += n as u64;
        let ratio = self.taken.get().saturating_mul(limits::MAX_RATIO);
        if self.given > self.budget {
            let why = format!("a layer goes beyond the {} bytes that are left", self.budget);
            return Err(io::Error::other(Exceeded(why)));
        }
        if self.given > limits::RATIO_MATTERS && self.given > ratio {
            let why = format!("a layer is more than {} times what it came as", limits::MAX_RATIO);
            return Err(io::Error::other(Exceeded(why)));
        }
        Ok(n)
    }
}

/// Decodes one frame after another; skippable frames, which carry other data, are skipped.
struct Zstd<R> {
    frame: FrameDecoder,
    is_in_frame: bool,
    packed: R,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_in_frame {
                while self.frame.can_collect() < buffer.len() && !self.frame.is_finished() {
                    let more = BlockDecodingStrategy::UptoBytes(buffer.len());
                    self.frame.decode_blocks(&mut self.packed, more).map_err(io::Error::other)?;
                }
                let n = self.frame.read(buffer)?;
                if n > 0 || buffer.is_empty() {
                    return Ok(n);
                }
                self.is_in_frame = false;
            }
            if self.packed.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.frame.reset(&mut self.packed) {
                Ok(()) => self.is_in_frame = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.packed).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}
