//! What a pod may ask for in a volume that is written in the pod itself.
//!
//! Whoever makes a PersistentVolume is an admin, and may mount what the driver can. Whoever makes a pod is not: without
//! bounds, the driver would read for them what only the node may (files of its own, a metadata service, buckets of the
//! node's role). So an admin names the sources that pods may have, a pod brings the credentials, and of the options it
//! has those that concern nobody else.

use crate::error::Refusal;
use crate::fields::shown;

/// Options of `volumeAttributes.options` that concern the pod alone.
const OPTIONS: [&str; 11] = [
    "ro",
    "rw",
    "noatime",
    "metadata.ttl",
    "fuse.read_ahead",
    "origin.s3.region",
    "posix.file_mode",
    "posix.dir_mode",
    "posix.uid",
    "posix.gid",
    "posix.ignore_mode",
];
/// Variables of a secret that are credentials. Others name files, programs or servers, which are the node's to choose.
const CREDENTIALS: [&str; 7] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
];
/// Regions are no credentials, and say nothing about the node.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
/// The option with a region.
const REGION: &str = "origin.s3.region";
/// The account whose name is part of the name of its server.
const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT_NAME";
/// The key that is a document of JSON.
const KEY_FILE: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";
/// What object_store takes from that document besides the key: another server, and that none is asked for a token.
const NO_KEYS: [&str; 2] = ["gcs_base_url", "disable_oauth"];
/// The longest label of a server's name.
const MAX_LABEL: usize = 63;
/// The characters that a URL must not have: they lead elsewhere than its beginning says, or carry options.
const LEADING_ELSEWHERE: [char; 6] = ['%', '?', '#', '@', '\\', '"'];

/// What an admin allows pods to mount by themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InlinePolicy {
    sources: Vec<String>,
    memory: Option<String>,
}

/// A beginning of sources that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no beginning of a URL: write it as `s3://`, `s3://bucket` or `s3://bucket/prefix/`")]
pub struct NotAPolicy(String);

impl InlinePolicy {
    /// Pods may mount what lies below one of `sources`: `s3://` (any bucket that their credentials open),
    /// `s3://bucket`. Each mount has this much `memory` for blocks, as `256MiB`; without, the configuration's.
    ///
    /// # Errors
    /// [`NotAPolicy`] for a source without a scheme, or of files of the node.
    pub fn new(sources: Vec<String>, memory: Option<String>) -> Result<Self, NotAPolicy> {
        for source in &sources {
            let scheme = source.split_once("://").map(|(scheme, _)| scheme);
            // A `file:` of a pod would be one of the driver, which is root of the node.
            if !scheme.is_some_and(|scheme| !scheme.is_empty() && !scheme.eq_ignore_ascii_case("file")) {
                return Err(NotAPolicy(source.clone()));
            }
        }
        Ok(Self { sources, memory })
    }

    /// Memory for the blocks of a mount.
    pub(crate) fn memory(&self) -> Option<&str> {
        self.memory.as_deref()
    }

    /// Checks what a pod asks for.
    ///
    /// # Errors
    /// The first thing that it may not have.
    pub(crate) fn check<'a>(
        &self,
        source: &str,
        options: impl IntoIterator<Item = &'a str>,
        variables: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        self.check_source(source)?;
        if let Some(option) = options.into_iter().find(|option| !OPTIONS.contains(option)) {
            return Err(Refusal::denied(format!(
                "option {} is not for inline volumes: use a PersistentVolume, or one of {}",
                shown(option),
                OPTIONS.join(", ")
            )));
        }
        let variables: Vec<&str> = variables.into_iter().collect();
        let foreign = variables.iter().find(|name| !CREDENTIALS.contains(name) && !REGIONS.contains(name));
        if let Some(name) = foreign {
            return Err(Refusal::denied(format!("{} in the secret is not for inline volumes", shown(name))));
        }
        let needed = needed(source);
        if needed.iter().any(|all| all.iter().all(|name| variables.contains(name))) {
            return Ok(());
        }
        let needed: Vec<String> = needed.iter().map(|all| all.join(" and ")).collect();
        Err(Refusal::denied(format!(
            "an inline volume has credentials of its own: name a Secret with {} in nodePublishSecretRef",
            needed.join(", or ")
        )))
    }

    fn check_source(&self, source: &str) -> Result<(), Refusal> {
        let allowed = self.sources.iter().any(|beginning| is_below(source, beginning));
        let is_plain = !source.contains(LEADING_ELSEWHERE) && !source.split('/').any(|part| matches!(part, "." | ".."));
        if allowed && is_plain {
            return Ok(());
        }
        Err(Refusal::denied(match (self.sources.is_empty(), allowed) {
            (true, _) => {
                "this cluster allows no inline volumes (csi.inline.sources): use a PersistentVolume".to_owned()
            }
            (false, false) => {
                format!("inline volumes may be of {}, and not of {}", self.sources.join(", "), shown(source))
            }
            (false, true) => format!("the source {} of an inline volume is no plain URL", shown(source)),
        }))
    }
}

/// Checks what stands behind the names of options and variables, which [`InlinePolicy::check`] has let through. A region and an account
/// become part of the name of a server, and more than a label would make it another server: the node reaches others than a pod does. What
/// is empty would be looked for on the node.
///
/// # Errors
/// The first that is more or less than it may be.
pub(crate) fn check_values<'a>(
    options: impl IntoIterator<Item = (&'a str, &'a str)>,
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), Refusal> {
    let no_label = |name: &str, value: &str| {
        Refusal::denied(format!("{} of an inline volume is {}, and no plain name", shown(name), shown(value)))
    };
    if let Some((name, value)) = options.into_iter().find(|(name, value)| *name == REGION && !is_label(value)) {
        return Err(no_label(name, value));
    }
    for (name, value) in variables {
        if value.is_empty() {
            return Err(Refusal::denied(format!(
                "{} in the secret is empty: say what it is, or leave it out",
                shown(name)
            )));
        }
        if (REGIONS.contains(&name) || name == ACCOUNT) && !is_label(value) {
            return Err(no_label(name, value));
        }
        if name == KEY_FILE {
            check_key_file(value)?;
        }
    }
    Ok(())
}

fn is_label(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=MAX_LABEL).contains(&text.len()) && text.bytes().all(is_part)
}

/// Nothing of it is shown: it is a secret.
fn check_key_file(text: &str) -> Result<(), Refusal> {
    let fields = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
        .map_err(|_| Refusal::denied(format!("{KEY_FILE} in the secret is no key of a service account, in JSON")))?;
    match NO_KEYS.iter().find(|name| fields.contains_key(**name)) {
        Some(name) => Err(Refusal::denied(format!("`{name}` in {KEY_FILE} is not for inline volumes"))),
        None => Ok(()),
    }
}

/// The variables of which a secret must have one row, for a mount to take no credentials of the node.
fn needed(source: &str) -> &'static [&'static [&'static str]] {
    match source.split_once("://").map(|(scheme, _)| scheme) {
        // Without both, what the environment lacks is looked for elsewhere.
        Some("s3") => &[&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]],
        Some("gs") => &[&["GOOGLE_SERVICE_ACCOUNT_KEY"]],
        Some("az") => &[
            &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"],
            &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_KEY"],
        ],
        // There is nothing that the node could prove.
        Some("http" | "https") => &[&[]],
        _ => &[],
    }
}

/// Whether a URL is this beginning or below it: `s3://bucket` has `s3://bucket/a`, and not `s3://bucket2`.
fn is_below(source: &str, beginning: &str) -> bool {
    source
        .strip_prefix(beginning)
        .is_some_and(|rest| rest.is_empty() || beginning.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

    fn policy(sources: &[&str]) -> InlinePolicy {
        InlinePolicy::new(sources.iter().map(|source| (*source).to_owned()).collect(), None).unwrap()
    }

    /// Whether it is, for who has all credentials.
    fn is_allowed(policy: &InlinePolicy, source: &str) -> bool {
        policy.check(source, [], CREDENTIALS).is_ok()
    }

    #[test]
    fn a_pod_mounts_what_lies_below_the_sources_that_an_admin_named() {
        let policy = policy(&["s3://team-a", "gs://models/public/"]);
        for good in ["s3://team-a", "s3://team-a/", "s3://team-a/x/y", "gs://models/public/llama"] {
            assert!(is_allowed(&policy, good), "{good}");
        }
        for wrong in [
            "s3://team-ab",
            "s3://team-b",
            "gs://models/publicity",
            "gs://models/public",
            "gs://models/public/../private",
            "s3://team-a/%2e%2e/x",
            "s3://team-a?endpoint=http://169.254.169.254",
            "s3://team-a@other",
            "file:///etc",
            "/etc",
            "http://169.254.169.254/latest",
            "forebay",
            "",
        ] {
            assert!(!is_allowed(&policy, wrong), "{wrong}");
        }
        assert!(!is_allowed(&self::policy(&[]), "s3://team-a"));
    }

    #[test]
    fn each_cloud_asks_for_its_own_credentials() {
        let policy = policy(&["s3://", "gs://", "az://", "https://data.example.org/", "ftp://"]);
        let check = |source, variables: &[&str]| policy.check(source, [], variables.to_vec()).is_ok();
        assert!(check("gs://b", &["GOOGLE_SERVICE_ACCOUNT_KEY"]) && !check("gs://b", &KEYS));
        assert!(check("az://b", &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_KEY"]));
        assert!(!check("az://b", &["AZURE_STORAGE_ACCOUNT_NAME"]) && check("https://data.example.org/a", &[]));
        assert!(!check("ftp://b", &CREDENTIALS));
    }

    #[test]
    fn a_policy_is_of_urls_and_never_of_files() {
        for wrong in ["bucket", "file:///data", "FILE:///data", "://", "/data"] {
            assert!(InlinePolicy::new(vec![wrong.to_owned()], None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pod_sets_nothing_that_concerns_others() {
        let policy = policy(&["s3://"]);
        let check = |option| policy.check("s3://b", [option], KEYS);
        assert!(check("ro").is_ok() && check("metadata.ttl").is_ok());
        for wrong in
            ["disk", "config", "environment", "log.file", "memory", "origin.s3.endpoint", "security.mode", "web"]
        {
            assert!(check(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn no_value_names_another_server_and_none_is_empty() {
        let variable = |name, value| check_values([], [(name, value)]);
        assert!(variable("AWS_REGION", "eu-west-1").is_ok() && variable(ACCOUNT, "models").is_ok());
        let key = r#"{"type": "service_account", "private_key": "-----BEGIN\n", "token_uri": "https://example.org"}"#;
        assert!(variable(KEY_FILE, key).is_ok() && variable(KEYS[1], "a/b+c=").is_ok());
        for (name, value) in [
            ("AWS_REGION", "example.org/#"),
            ("AWS_DEFAULT_REGION", "a.b"),
            (ACCOUNT, "example.org/"),
            (ACCOUNT, "user@host"),
            (KEYS[0], ""),
            (KEY_FILE, ""),
            (KEY_FILE, "[]"),
            (KEY_FILE, r#"{"gcs_base_url": "http://169.254.169.254"}"#),
            (KEY_FILE, r#"{"gcs\u005fbase_url": "http://169.254.169.254"}"#),
            (KEY_FILE, r#"{"disable_oauth": true}"#),
        ] {
            let refusal = variable(name, value).unwrap_err().to_string();
            assert!(refusal.contains(name) && !refusal.contains("169.254"), "{refusal}");
        }
        let option = |value| check_values([(REGION, value)], []);
        assert!(option("us-east-1").is_ok() && check_values([("metadata.ttl", "5m")], []).is_ok());
        for wrong in ["", "a.b", "example.org/", &"a".repeat(MAX_LABEL + 1)] {
            assert!(option(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pod_brings_its_own_credentials_and_nothing_else() {
        let policy = policy(&["s3://"]);
        let check = |variables: &[&str]| policy.check("s3://b", [], variables.to_vec());
        assert!(check(&KEYS).is_ok() && check(&[KEYS[0], KEYS[1], "AWS_REGION"]).is_ok());
        for wrong in [
            &[][..],
            &["AWS_REGION"],
            &["AWS_ACCESS_KEY_ID"],
            &["AWS_SESSION_TOKEN"],
            // Of another cloud: in this one the node's would be taken.
            &["GOOGLE_SERVICE_ACCOUNT_KEY"],
            &[KEYS[0], KEYS[1], "AWS_ENDPOINT_URL"],
            &[KEYS[0], KEYS[1], "AWS_WEB_IDENTITY_TOKEN_FILE"],
            &[KEYS[0], KEYS[1], "FOREBAY_CONFIG"],
            &[KEYS[0], KEYS[1], "LD_PRELOAD"],
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_pod_names_it_stays_below_the_source(rest in "[a./%?#@:-]{0,12}") {
            let source = format!("s3://team-a{rest}");
            if is_allowed(&policy(&["s3://team-a"]), &source) {
                prop_assert!(rest.is_empty() || rest.starts_with('/'));
                prop_assert!(!rest.split('/').any(|part| part == ".."));
            }
        }
    }
}
