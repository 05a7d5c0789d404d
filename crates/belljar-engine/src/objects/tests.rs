use super::*;

#[test]
fn a_url_has_a_bucket_and_a_prefix() {
    let (bucket, prefix) = parse("s3://bucket/a/b/").unwrap();
    assert_eq!((bucket, prefix.as_ref()), ("bucket", "a/b"));
    let (bucket, prefix) = parse("s3://bucket").unwrap();
    assert_eq!((bucket, prefix.as_ref()), ("bucket", ""));
    for url in ["", "s3://", "s3:///a", "http://a/b", "/a/b", "s3://a b/c", "s3://b/a//c"] {
        let error = parse(url).unwrap_err().to_string();
        assert!(error.contains("BELLJAR_BLOBS_URL"), "{error}");
    }
}

#[test]
fn a_secret_key_is_not_shown() {
    let config = ObjectsConfig {
        url: "s3://bucket/prefix".into(),
        endpoint: None,
        region: None,
        key: Some(("the-id".into(), "the-secret".into())),
    };
    let shown = format!("{config:?} {:?}", Objects::open(&config).unwrap());
    assert!(shown.contains("the-id") && !shown.contains("the-secret"), "{shown}");
}
