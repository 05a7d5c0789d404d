//! The media type of a file, from its content, and from its name if the content is not enough.
//!
//! Code in a sandbox chooses both, and a browser acts on the result. So the two are compared: content that is not text
//! never gets a text type, and text never gets an image type.
//!
//! The table of names is our own. The usual crate knows a thousand formats, most of them obsolete, but not those of
//! data work (Parquet, Arrow, notebooks, JSON lines), and treats `.ts` as a video.

use infer::MatcherType;

const OCTETS: &str = "application/octet-stream";
const PLAIN: &str = "text/plain; charset=utf-8";

/// How many bytes of a file [`mime_of`] needs. Office formats differ only some bytes after the start.
pub(super) const HEAD_BYTES: usize = 8192;

/// The type of a file with this name that begins with `head`.
#[must_use]
pub(super) fn mime_of(name: &str, head: &[u8]) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let extension = extension.to_ascii_lowercase();
    if let Some(mime) = by_own_magic(head) {
        return mime;
    }
    if is_text(head) {
        return text_by_name(&extension).unwrap_or(PLAIN);
    }
    match infer::get(head).filter(is_trusted).map(|kind| kind.mime_type()) {
        Some("application/zip") => zip_by_name(&extension).unwrap_or("application/zip"),
        // `infer` returns this type for all files in this container if it may not look inside.
        Some("application/msword") => {
            ole_by_name(&extension).unwrap_or("application/x-ole-storage")
        }
        Some(mime) => mime,
        None => binary_by_name(&extension).unwrap_or(OCTETS),
    }
}

/// Whether a browser that shows a file of this type would run code from it.
#[must_use]
pub fn is_active(mime: &str) -> bool {
    let essence = mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (_, subtype) = essence.split_once('/').unwrap_or_default();
    // Any XML can have a style sheet that converts it to HTML. A script alone does nothing, but a
    // page could load it.
    matches!(subtype, "html" | "xml" | "xsl" | "javascript" | "ecmascript" | "x-javascript")
        || subtype.ends_with("+xml")
}

/// Magic bytes that decide the type, and that `infer` does not know or does not check fully. Some are text, so they are
/// compared before the check for text.
fn by_own_magic(head: &[u8]) -> Option<&'static str> {
    const MAGIC: &[(&[u8], &str)] = &[
        (b"%PDF-", "application/pdf"),
        (b"%!PS-Adobe-", "application/postscript"),
        (b"{\\rtf1", "application/rtf"),
        (b"PAR1", "application/vnd.apache.parquet"),
        (b"ARROW1\0\0", "application/vnd.apache.arrow.file"),
        (b"\x93NUMPY", "application/x-npy"),
        (b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
        (b"SQLite format 3\0", "application/vnd.sqlite3"),
    ];
    let (_, mime) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic))?;
    // Four letters could also be the beginning of a text.
    (*mime != "application/vnd.apache.parquet" || !is_text(head)).then_some(*mime)
}

/// Whether the result of `infer` is reliable. It recognises programs by two bytes, which may also begin an array of
/// numbers, and it guesses text formats.
fn is_trusted(kind: &infer::Type) -> bool {
    match kind.matcher_type() {
        MatcherType::App => kind.mime_type() == "application/wasm",
        MatcherType::Text | MatcherType::Custom => false,
        _ => true,
    }
}

/// Whether it is UTF-8 without control characters. The last character may be incomplete.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    // Escape is allowed, because logs contain colours.
    let harmless = |c: char| matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b');
    text.chars().all(|c| !c.is_control() || harmless(c))
}

fn text_by_name(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "csv" => "text/csv; charset=utf-8",
        "tsv" | "tab" => "text/tab-separated-values; charset=utf-8",
        "json" | "map" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "geojson" => "application/geo+json",
        "ipynb" => "application/x-ipynb+json",
        "md" | "markdown" => "text/markdown; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "xhtml" | "xht" => "application/xhtml+xml",
        "svg" => "image/svg+xml",
        "xml" | "xsd" | "xsl" | "xslt" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "py" | "pyi" => "text/x-python; charset=utf-8",
        "js" | "mjs" | "cjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "sh" | "bash" => "text/x-shellscript; charset=utf-8",
        "sql" => "application/sql",
        "tex" => "application/x-tex",
        "ics" => "text/calendar; charset=utf-8",
        _ => return None,
    })
}

/// Formats that are zip files. `infer` recognises some of them, but only if the deciding entry comes early.
fn zip_by_name(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "xlsm" => "application/vnd.ms-excel.sheet.macroenabled.12",
        "odt" => "application/vnd.oasis.opendocument.text",
        "ods" => "application/vnd.oasis.opendocument.spreadsheet",
        "odp" => "application/vnd.oasis.opendocument.presentation",
        "epub" => "application/epub+zip",
        "npz" => "application/x-npz",
        "kmz" => "application/vnd.google-earth.kmz",
        _ => return None,
    })
}

/// Old office formats, which have the same container.
fn ole_by_name(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "doc" => "application/msword",
        "xls" => "application/vnd.ms-excel",
        "ppt" => "application/vnd.ms-powerpoint",
        _ => return None,
    })
}

/// Formats without magic bytes. None of them may be active in a browser.
fn binary_by_name(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "arrow" | "arrows" => "application/vnd.apache.arrow.stream",
        "tar" => "application/x-tar",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    const ZIP: &[u8] = b"PK\x03\x04\x14\0\0\0\x08\0\0\0!\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0a.npy";
    const OLE: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0";

    #[test]
    fn content_decides_where_it_can() {
        for (name, head, mime) in [
            ("plot.png", PNG, "image/png"),
            ("plot.html", PNG, "image/png"),
            ("plot", b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
            ("a.gif", b"GIF89a\x01\0\x01\0\x80", "image/gif"),
            ("a.webp", b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
            ("a.pdf", b"%PDF-1.4\n1 0 obj", "application/pdf"),
            ("a.txt", b"%PDF-1.4\n1 0 obj", "application/pdf"),
            ("a.gz", b"\x1f\x8b\x08\0\0\0\0\0", "application/gzip"),
            ("a.parquet", b"PAR1\x15\x04\x15", "application/vnd.apache.parquet"),
            ("a.txt", b"PAR1S IS A CITY", PLAIN),
            ("a.npy", b"\x93NUMPY\x01\0v\0{'descr'", "application/x-npy"),
            ("a.db", b"SQLite format 3\0\x10\0", "application/vnd.sqlite3"),
            ("a.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "application/vnd.apache.arrow.file"),
            ("a.feather", b"ARROW1\0\0\xff\xff\xff\xff", "application/vnd.apache.arrow.file"),
            ("a.h5", b"\x89HDF\r\n\x1a\n\0", "application/x-hdf5"),
            ("a.mp4", b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41", "video/mp4"),
            ("a.mp3", b"ID3\x04\0\0\0\0\0\0", "audio/mpeg"),
            ("a.wav", b"RIFF\x24\0\0\0WAVEfmt \x10\0", "audio/x-wav"),
            ("a.wasm", b"\0asm\x01\0\0\0", "application/wasm"),
            ("a.zip", ZIP, "application/zip"),
            ("a", b"\0\x01\x02", OCTETS),
            // An object file also begins with these two bytes.
            ("a.bin", b"\0\x02\0\0\0\0\0\0", OCTETS),
        ] {
            assert_eq!(mime_of(name, head), mime, "{name} {}", head.escape_ascii());
        }
    }

    #[test]
    fn containers_are_told_apart_by_name() {
        assert_eq!(mime_of("a.npz", ZIP), "application/x-npz");
        assert_eq!(
            mime_of("Report.XLSX", ZIP),
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
        );
        assert_eq!(mime_of("a.html", ZIP), "application/zip");
        assert_eq!(mime_of("a.xls", OLE), "application/vnd.ms-excel");
        assert_eq!(mime_of("a.html", OLE), "application/x-ole-storage");
    }

    #[test]
    fn names_decide_about_text() {
        for (name, mime) in [
            ("a.csv", "text/csv; charset=utf-8"),
            ("A.CSV", "text/csv; charset=utf-8"),
            ("a.json", "application/json"),
            ("a.jsonl", "application/x-ndjson"),
            ("a.ipynb", "application/x-ipynb+json"),
            ("a.html", "text/html; charset=utf-8"),
            ("a.svg", "image/svg+xml"),
            ("a.tar.xml", "application/xml"),
            ("a.py", "text/x-python; charset=utf-8"),
            ("a.txt", PLAIN),
            ("a.png", PLAIN),
            ("a.parquet", PLAIN),
            ("a.wasm", PLAIN),
            ("csv", PLAIN),
            (".", PLAIN),
            ("", PLAIN),
        ] {
            assert_eq!(mime_of(name, b"<html>some <b>text</b>\n"), mime, "{name}");
        }
        assert_eq!(mime_of("empty.csv", b""), "text/csv; charset=utf-8");
        // Text can begin with the magic bytes of some formats.
        for text in ["BM is a car", "MZ", "ID3 tags", "GIF89a=1;", "\u{feff}a", "#!/bin/sh\n"] {
            assert_eq!(mime_of("notes", text.as_bytes()), PLAIN, "{text}");
        }
    }

    #[test]
    fn text_may_be_torn_and_coloured_but_not_broken() {
        assert_eq!(mime_of("a", "gr\u{fc}n".as_bytes()), PLAIN);
        assert_eq!(mime_of("a", &"gr\u{fc}".as_bytes()[..3]), PLAIN);
        assert_eq!(mime_of("a", b"\x1b[31mred\x1b[0m\r\n"), PLAIN);
        for broken in [&b"gr\xfcn"[..], b"a\0b", b"a\x07", b"a\x7f", b"\xff\xfea\0", b"\xc2\x9b"] {
            assert_eq!(mime_of("a", broken), OCTETS, "{}", broken.escape_ascii());
            assert_eq!(mime_of("a.html", broken), OCTETS, "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn what_browsers_run_is_known() {
        for active in [
            "text/html",
            "Text/HTML; charset=utf-8",
            "image/svg+xml",
            "application/xhtml+xml",
            "application/xml",
            "text/xml ; x",
            "text/javascript",
        ] {
            assert!(is_active(active), "{active}");
        }
        for inert in [PLAIN, OCTETS, "image/png", "application/pdf", "text/csv", "", "html"] {
            assert!(!is_active(inert), "{inert}");
        }
    }

    proptest! {
        /// Content that begins like a known format and continues with other bytes neither panics nor becomes active.
        #[test]
        fn binary_content_is_never_active(
            magic in prop::sample::select(vec![
                &b""[..], b"PK\x03\x04", b"\0\0\0\x18ftyp", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18",
                b"\x1a\x45\xdf\xa3", b"RIFF", b"OggS", b"dex\n", b"<html>", b"<?xml", b"<svg", OLE,
                b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0_rels/.rels",
            ]),
            rest in prop::collection::vec(any::<u8>(), 0..600),
            extension in prop::sample::select(vec!["html", "svg", "xml", "js", "xhtml", "png", ""]),
        ) {
            let head = [magic, &rest].concat();
            let mime = mime_of(&format!("a.{extension}"), &head);
            prop_assert!(is_text(&head) || !is_active(mime), "{mime}");
            prop_assert!(is_text(&head) || !mime.starts_with("text/"), "{mime}");
            prop_assert!(!is_text(&head) || !mime.starts_with("image/") || is_active(mime), "{mime}");
        }
    }
}
