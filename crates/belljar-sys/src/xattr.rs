//! Extended attributes of files.

use std::io;
use std::path::Path;

use rustix::io::Errno;

/// The value of an attribute, without following links. Values are short.
pub fn get(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 256];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
