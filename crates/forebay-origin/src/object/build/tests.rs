//! Which settings a client is made with.

use super::*;
use crate::{ChosenBy, S3Keys, S3Options};

fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn s3(url: &str, options: &OriginOptions, pairs: &[(&str, &str)]) -> Result<Client, OriginError> {
    build(&Url::parse(url).unwrap(), options, &variables(pairs))
}

#[test]
fn the_endpoint_for_s3_alone_comes_before_the_general_one() {
    let client = s3(
        "s3://b/p/q/",
        &OriginOptions::default(),
        &[("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")],
    );
    let client = client.unwrap();
    assert_eq!(client.setting.endpoint, "http://127.0.0.1:2");
    assert_eq!(client.prefix, "p/q/");
}

#[test]
fn the_region_comes_from_the_options_then_the_environment_then_the_profile() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/config"), "[default]\nregion = from-profile\n").unwrap();
    let home = home.path().to_str().unwrap();
    let mut options = OriginOptions::default();
    let region = |options: &OriginOptions, pairs: &[(&str, &str)]| s3("s3://b", options, pairs).unwrap().setting.region;
    assert_eq!(region(&options, &[("HOME", home)]).as_deref(), Some("from-profile"));
    assert_eq!(region(&options, &[("HOME", home), ("AWS_REGION", "env")]).as_deref(), Some("env"));
    options.s3.region = Some("option".into());
    assert_eq!(region(&options, &[("HOME", home), ("AWS_REGION", "env")]).as_deref(), Some("option"));
    assert_eq!(region(&OriginOptions::default(), &[]).as_deref(), Some("us-east-1"));
}

#[test]
fn a_profile_that_is_asked_for_comes_before_the_environments_keys() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    let text = "[lab]\naws_access_key_id = A\naws_secret_access_key = S\n";
    std::fs::write(home.path().join(".aws/credentials"), text).unwrap();
    let pairs = [("HOME", home.path().to_str().unwrap()), ("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "E")];
    let mut options = OriginOptions::default();
    let source = s3("s3://b", &options, &pairs).unwrap().setting.credentials.unwrap();
    assert!(source.contains("environment"), "{source}");
    options.s3.profile = Some("lab".into());
    assert_eq!(s3("s3://b", &options, &pairs).unwrap().setting.credentials.unwrap(), "the aws profile `lab`");
    let keys = S3Keys {
        access_key_id: "id".into(),
        secret_access_key: "key".into(),
        session_token: None,
        source: "the options".into(),
    };
    assert!(!format!("{keys:?}").contains("key\""));
    let own = OriginOptions { s3: S3Options { keys: Some(keys), ..S3Options::default() }, ..options.clone() };
    assert_eq!(s3("s3://b", &own, &pairs).unwrap().setting.credentials.unwrap(), "the options");
    options.s3.profile = Some("none".into());
    assert!(matches!(s3("s3://b", &options, &pairs), Err(OriginError::Profile { .. })));
}

#[test]
fn plain_http_needs_leave_unless_it_stays_on_this_machine() {
    let mut options = OriginOptions::default();
    options.s3.endpoint = Some("http://minio.lab:9000".into());
    assert!(matches!(s3("s3://b", &options, &[]), Err(OriginError::PlainHttp { .. })));
    options.allow_http = true;
    assert!(s3("s3://b", &options, &[]).is_ok());
    options.allow_http = false;
    options.s3.endpoint = Some("http://localhost:9000".into());
    assert!(s3("s3://b", &options, &[]).is_ok());
}

#[test]
fn a_server_that_a_record_named_gets_neither_the_environment_nor_a_profile() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    let text = "[default]\naws_access_key_id = A\naws_secret_access_key = S\nregion = there\n";
    std::fs::write(home.path().join(".aws/credentials"), text).unwrap();
    let pairs = [
        ("HOME", home.path().to_str().unwrap()),
        ("AWS_ACCESS_KEY_ID", "E"),
        ("AWS_SECRET_ACCESS_KEY", "E"),
        ("AWS_ENDPOINT_URL", "https://elsewhere"),
    ];
    let chosen_by = ChosenBy::RecordWithServer { may_be_local: false };
    let endpoint = Some("https://minio".to_owned());
    let mut options = OriginOptions { chosen_by, ..OriginOptions::default() };
    options.s3.endpoint = endpoint;
    assert!(matches!(s3("s3://b", &options, &pairs), Err(OriginError::NoKeys { .. })));
    options.s3.anonymous = true;
    let setting = s3("s3://b", &options, &pairs).unwrap().setting;
    assert_eq!((setting.credentials, setting.endpoint.as_str()), (None, "https://minio"));
    assert_eq!(setting.region.as_deref(), Some("us-east-1"));
    options.s3.profile = Some("default".into());
    assert!(matches!(s3("s3://b", &options, &pairs), Err(OriginError::Profile { .. })));
    // On a server that it does not name, this machine's are taken.
    let options = OriginOptions { chosen_by: ChosenBy::Record, ..OriginOptions::default() };
    let setting = s3("s3://b", &options, &pairs).unwrap().setting;
    assert_eq!(setting.endpoint, "https://elsewhere");
    assert!(setting.credentials.unwrap().contains("environment"));
}

#[test]
fn a_record_reaches_no_address_of_this_machine() {
    let chosen_by = ChosenBy::RecordWithServer { may_be_local: false };
    let mut options = OriginOptions { chosen_by, allow_http: true, ..OriginOptions::default() };
    options.s3.anonymous = true;
    options.s3.endpoint = Some("http://169.254.169.254".into());
    assert!(matches!(s3("s3://b", &options, &[]), Err(OriginError::Address { .. })));
    for chosen_by in [chosen_by, ChosenBy::Record] {
        let options = OriginOptions { chosen_by, ..options.clone() };
        assert!(matches!(s3("http://127.0.0.1:1/x", &options, &[]), Err(OriginError::Address { .. })));
    }
}

#[test]
fn each_scheme_has_its_client() {
    let options = OriginOptions::default();
    let azure = [("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")];
    assert_eq!(s3("az://c/p", &options, &azure).unwrap().flavor, Flavor::Azure);
    assert_eq!(s3("abfss://c@a.dfs.core.windows.net/p", &options, &azure).unwrap().prefix, "p/");
    assert_eq!(s3("https://example.com/data", &options, &[]).unwrap().flavor, Flavor::Http);
    assert_eq!(s3("gs://b", &options, &[("GOOGLE_SKIP_SIGNATURE", "true")]).unwrap().flavor, Flavor::S3);
    assert!(matches!(s3("ftp://b", &options, &[]), Err(OriginError::Scheme { .. })));
}

#[test]
fn what_asks_for_connections_of_another_kind_is_left_to_the_client() {
    let asks = |name: &str, value: &str| asks_for_other_connections((&name.to_owned(), &value.to_owned()));
    for name in ["AWS_PROXY_URL", "aws_allow_invalid_certificates", "AWS_USER_AGENT", "https_proxy", "ALL_PROXY"] {
        assert!(asks(name, "x") && !asks(name, ""), "{name}");
    }
    for name in ["AWS_ACCESS_KEY_ID", "AWS_ALLOW_HTTP", "AWS_TIMEOUT", "AWS_CONFIG_FILE", "NO_PROXY", "PROXY_URL"] {
        assert!(!asks(name, "x"), "{name}");
    }
}
