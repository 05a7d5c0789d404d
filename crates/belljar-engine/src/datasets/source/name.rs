//! The file name of a fetched dataset in a sandbox.

/// The longest extension. Longer text after a dot is not an extension.
const MAX_EXTENSION: usize = 10;

/// Extensions of server programs, which do not describe the content.
const PROGRAM_EXTENSIONS: &[&str] = &["asp", "aspx", "cgi", "do", "jsp", "php"];

/// The last part of the id, which clients know before the transfer. If it has no extension, one is added: from the name
/// in `Content-Disposition`, the URL, or the content type.
pub(super) fn file_name(
    id: &str,
    disposition: Option<&str>,
    url_path: &str,
    content_type: Option<&str>,
) -> String {
    let name = id.rsplit('/').next().unwrap_or(id);
    if extension(name).is_some() {
        return name.to_owned();
    }
    let proposed = disposition.and_then(proposed_name);
    let found = proposed
        .as_deref()
        .and_then(extension)
        .or_else(|| extension(url_path).filter(|ext| !PROGRAM_EXTENSIONS.contains(&ext.as_str())))
        .or_else(|| content_type.and_then(of_content_type).map(str::to_owned));
    match found {
        Some(extension) => format!("{name}.{extension}"),
        None => name.to_owned(),
    }
}

/// The text after the last dot, if it contains a letter: `1.2` is a version.
fn extension(name: &str) -> Option<String> {
    let (stem, extension) = name.rsplit('/').next()?.rsplit_once('.')?;
    let is_one = !stem.is_empty()
        && (1..=MAX_EXTENSION).contains(&extension.len())
        && extension.bytes().all(|b| b.is_ascii_alphanumeric())
        && extension.bytes().any(|b| b.is_ascii_alphabetic());
    is_one.then(|| extension.to_ascii_lowercase())
}

/// The file name in a `Content-Disposition`, without directories. Only its extension is used, so percent-encoding
/// need not be decoded.
fn proposed_name(disposition: &str) -> Option<String> {
    let lower = disposition.to_ascii_lowercase();
    let at = lower.find("filename*=").map(|at| at + 10);
    let at = at.or_else(|| lower.find("filename=").map(|at| at + 9))?;
    let value = disposition[at..].trim_start();
    let name = match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split(';').next(),
    };
    let name = name?.trim().rsplit(['/', '\\']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn of_content_type(content_type: &str) -> Option<&'static str> {
    let kind = content_type.split(';').next()?.trim().to_ascii_lowercase();
    Some(match kind.as_str() {
        "text/csv" | "application/csv" => "csv",
        "text/tab-separated-values" => "tsv",
        "text/plain" => "txt",
        "text/html" => "html",
        "text/markdown" => "md",
        "text/xml" | "application/xml" => "xml",
        "application/json" | "text/json" => "json",
        "application/jsonl" | "application/x-ndjson" | "application/x-jsonlines" => "jsonl",
        "application/geo+json" => "geojson",
        "application/yaml" | "application/x-yaml" => "yaml",
        "application/vnd.apache.parquet" | "application/x-parquet" => "parquet",
        "application/vnd.apache.arrow.file" => "arrow",
        "application/vnd.apache.arrow.stream" => "arrows",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        "application/vnd.ms-excel" => "xls",
        "application/vnd.sqlite3" | "application/x-sqlite3" => "sqlite",
        "application/x-hdf5" | "application/x-hdf" => "h5",
        "application/pdf" => "pdf",
        "application/zip" => "zip",
        "application/gzip" | "application/x-gzip" => "gz",
        "application/zstd" => "zst",
        "image/png" => "png",
        "image/jpeg" => "jpg",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_ids_and_extensions_from_the_first_that_has_one() {
        let csv = Some("text/csv; charset=utf-8");
        let attached = Some("attachment; filename=\"../Export 7.XLSX\"; size=3");
        for (id, disposition, path, kind, expected) in [
            ("s/a.parquet", attached, "/x.csv", csv, "a.parquet"),
            ("s/a.tar.gz", None, "/x", csv, "a.tar.gz"),
            ("s/a", attached, "/x.json", csv, "a.xlsx"),
            ("s/a", Some("attachment; filename*=UTF-8''na%C3%AFve.csv"), "/x", None, "a.csv"),
            ("s/a", Some("attachment; filename=b.tsv; x=1"), "/x", None, "a.tsv"),
            ("s/a", Some("attachment; filename=\"..\\..\\etc\\passwd\""), "/x", csv, "a.csv"),
            ("s/a", Some("attachment; filename=x./../y"), "/x", None, "a"),
            ("s/a", Some("inline"), "/data/a.parquet", csv, "a.parquet"),
            ("s/a", None, "/v1.2/export.php", csv, "a.csv"),
            ("s/a", None, "/v1.2/export", csv, "a.csv"),
            ("s/model-v1.2", None, "/x", Some("application/json"), "model-v1.2.json"),
            ("s/a", None, "/x", Some("application/octet-stream"), "a"),
            (".hidden", None, "/x", csv, ".hidden.csv"),
            ("ü", None, "/x", None, "ü"),
        ] {
            assert_eq!(file_name(id, disposition, path, kind), expected, "{id} {disposition:?}");
        }
    }
}
