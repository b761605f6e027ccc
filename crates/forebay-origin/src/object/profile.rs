//! Profiles of `~/.aws`: static keys, region and endpoint.
//!
//! The object store's client does not read them, and the AWS SDK that does is larger than all of this crate's
//! dependencies together. Profiles whose keys come from elsewhere (SSO, an assumed role, a process) are named as such,
//! with the command that turns them into environment variables.

use std::collections::HashMap;
use std::path::PathBuf;

/// What a profile says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// The two files, as the environment places them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProfileFiles {
    pub(crate) config: Option<PathBuf>,
    pub(crate) credentials: Option<PathBuf>,
}

type Sections = HashMap<String, HashMap<String, String>>;

impl ProfileFiles {
    /// `AWS_CONFIG_FILE` and `AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/config` and `~/.aws/credentials`.
    pub(crate) fn locate(variables: &HashMap<String, String>) -> Self {
        let place = |variable: &str, name: &str| {
            let in_home = || Some(PathBuf::from(variables.get("HOME")?).join(".aws").join(name));
            variables.get(variable).map(PathBuf::from).or_else(in_home)
        };
        Self {
            config: place("AWS_CONFIG_FILE", "config"),
            credentials: place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        }
    }

    /// Reads the profile `name`; `None` when neither file has it.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Profile>, String> {
        let text = |path: &Option<PathBuf>| -> Result<String, String> {
            let Some(path) = path else { return Ok(String::new()) };
            match std::fs::read_to_string(path) {
                Ok(text) => Ok(text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                Err(error) => Err(format!("cannot read {}: {error}", path.display())),
            }
        };
        find(name, &text(&self.config)?, &text(&self.credentials)?)
    }
}

/// The profile `name` in the text of the two files. Keys in the credentials file come first.
fn find(name: &str, config: &str, credentials: &str) -> Result<Option<Profile>, String> {
    let config = sections(config);
    let in_config = config.get(&format!("profile {name}")).or_else(|| config.get(name));
    let credentials = sections(credentials);
    let in_credentials = credentials.get(name);
    if in_config.is_none() && in_credentials.is_none() {
        return Ok(None);
    }
    let get = |key: &str| {
        let found = in_credentials
            .and_then(|section| section.get(key))
            .or_else(|| in_config.and_then(|section| section.get(key)));
        found.filter(|value| !value.is_empty()).cloned()
    };
    let profile = Profile {
        access_key_id: get("aws_access_key_id"),
        secret_access_key: get("aws_secret_access_key"),
        session_token: get("aws_session_token"),
        region: get("region"),
        endpoint: get("endpoint_url"),
    };
    if profile.access_key_id.is_none() {
        const ELSEWHERE: [&str; 5] =
            ["sso_session", "sso_start_url", "role_arn", "credential_process", "web_identity_token_file"];
        if let Some(kind) = ELSEWHERE.into_iter().find(|key| get(key).is_some()) {
            return Err(format!(
                "its keys come from `{kind}`, which is not read here; export them with `eval \"$(aws configure \
                 export-credentials --profile {name} --format env)\"`"
            ));
        }
    }
    if profile.access_key_id.is_some() != profile.secret_access_key.is_some() {
        return Err("it has only one of aws_access_key_id and aws_secret_access_key; give both".to_owned());
    }
    Ok(Some(profile))
}

/// The sections of an INI file. Indented lines are AWS's nested settings (`s3 =` and below), which are not read.
fn sections(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut current = None;
    for line in text.lines() {
        if line.starts_with([' ', '\t']) || line.starts_with(['#', ';']) {
            continue;
        }
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            current = Some(name);
        } else if let (Some(section), Some((key, value))) = (&current, line.split_once('=')) {
            // A comment within a line needs a blank before it.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default().trim();
            if let Some(section) = sections.get_mut(section) {
                section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n# note\n[profile  lab]\nregion=us-west-2 # there\n\
                          endpoint_url = http://lab:9000\ns3 =\n  max_concurrent_requests = 20\n\
                          [profile sso]\nsso_session = corp\n";
    const CREDENTIALS: &str = "[default]\naws_access_key_id = AK\naws_secret_access_key = S/K+=\n[lab]\n\
                               AWS_ACCESS_KEY_ID=LAB\naws_secret_access_key=L\naws_session_token=T\n[half]\n\
                               aws_access_key_id=x\n";

    #[test]
    fn a_profile_is_made_of_both_files() {
        let lab = find("lab", CONFIG, CREDENTIALS).unwrap().unwrap();
        assert_eq!(lab.access_key_id.as_deref(), Some("LAB"));
        assert_eq!(lab.session_token.as_deref(), Some("T"));
        assert_eq!(lab.region.as_deref(), Some("us-west-2"));
        assert_eq!(lab.endpoint.as_deref(), Some("http://lab:9000"));
        let default = find("default", CONFIG, CREDENTIALS).unwrap().unwrap();
        assert_eq!(default.secret_access_key.as_deref(), Some("S/K+="));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        assert_eq!(find("other", CONFIG, CREDENTIALS), Ok(None));
    }

    #[test]
    fn a_profile_of_another_kind_is_refused_with_the_way_out() {
        let reason = find("sso", CONFIG, CREDENTIALS).unwrap_err();
        assert!(reason.contains("sso_session") && reason.contains("export-credentials --profile sso"), "{reason}");
        assert!(find("half", CONFIG, CREDENTIALS).unwrap_err().contains("only one of"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(config in "[\\[\\]a-z =#;\n\t]{0,200}", credentials in ".{0,100}") {
            let _ = find("default", &config, &credentials);
        }
    }
}
