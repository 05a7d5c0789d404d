//! Settings of the S3 server for the content of artifacts and for snapshots.

use anyhow::{Result, bail};
use belljar_engine::objects::{Objects, ObjectsConfig};

use super::values::Values;

/// `None` if the content is in a directory.
pub(super) fn read(values: &Values<'_>) -> Result<Option<ObjectsConfig>> {
    let text = |name: &str| {
        let text = values.text(name).trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let Some(url) = values.optional("BELLJAR_BLOBS_URL", url)? else { return Ok(None) };
    let key = match (text("AWS_ACCESS_KEY_ID"), text("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => Some((id, secret)),
        (None, None) => None,
        _ => bail!("set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither"),
    };
    let endpoint = values.optional("AWS_ENDPOINT_URL", |text| {
        let is_url = text.starts_with("http://") || text.starts_with("https://");
        is_url.then(|| text.trim_end_matches('/').to_owned())
    })?;
    Ok(Some(ObjectsConfig { url, endpoint, region: text("AWS_REGION"), key }))
}

fn url(text: &str) -> Option<String> {
    Objects::is_url(text).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;

    #[test]
    fn content_is_in_s3_if_there_is_a_url() {
        assert!(with(&[]).unwrap().artifacts.objects.is_none());
        let url = ("BELLJAR_BLOBS_URL", "s3://bucket/a");
        let (id, secret) = (("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hunter2"));
        let endpoint = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1/");
        let settings = with(&[url, id, secret, endpoint]).unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        let objects = settings.artifacts.objects.unwrap();
        assert_eq!(objects.endpoint.as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(objects.region.as_deref(), Some("us-east-1"));
        assert!(settings.server.snapshots.remote.is_some());
    }

    #[test]
    fn errors_name_the_setting_and_not_the_secret() {
        let url = ("BELLJAR_BLOBS_URL", "s3://bucket/a");
        let secret = ("AWS_SECRET_ACCESS_KEY", "hunter2");
        for (pairs, expected) in [
            (
                vec![("BELLJAR_BLOBS_URL", "/srv/blobs")],
                "BELLJAR_BLOBS_URL=/srv/blobs: expected s3://",
            ),
            (
                vec![url, ("AWS_ENDPOINT_URL", "minio:9000")],
                "AWS_ENDPOINT_URL=minio:9000: expected",
            ),
            (vec![url, secret], "AWS_ACCESS_KEY_ID"),
        ] {
            let error = with(&pairs).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        // Without the URL, keys for other programs do not matter.
        with(&[secret]).unwrap();
    }
}
