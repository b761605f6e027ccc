//! Which mount the attributes, secrets and options of a volume mean: the source and the options of `forebay
//! mount-helper`, and the variables that its process alone gets.
//!
//! Attributes are `source` and `options`. What the kubelet adds begins with `csi.storage.k8s.io/`. `mountOptions` of a
//! PersistentVolume are options, too, and there the kubelet puts the SELinux label of the pod. A secret's keys are
//! names of variables.

use std::collections::HashMap;
use std::fmt;

use crate::error::Refusal;
use crate::fields::{self, Access, shown};
use crate::inline::{self, InlinePolicy};

/// What is mounted, in `volumeAttributes`.
const SOURCE: &str = "source";
/// Options as of `mount -o`, in `volumeAttributes`.
const OPTIONS: &str = "options";
/// What the kubelet and provisioners add to the attributes.
const ADDED: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];
/// The attribute by which the kubelet says that the volume is written in its pod. It wins over what the pod says.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// The source that stands for what the workers of the driver's configuration serve.
const WORKERS: &str = "forebay";
/// What the kernel's table shows for a mount of what workers serve.
const SHOWN_OF_WORKERS: &str = "forebay://";
/// The option with the SELinux label, which the kubelet adds to `mountOptions`.
const LABEL: &str = "context";
/// Options that the driver sets itself.
const OURS: [&str; 4] = ["log.file", "allow_other", "fuse.allow_other", "fuse.selinux_context"];
/// Where variables of a secret may begin: with what credentials of a cloud do. Others would change the program and its
/// configuration.
const CLOUDS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Set for a process that has no secret of its own, and so the credentials of the driver that started it.
pub(crate) const OF_DRIVER: &str = "FOREBAY_CSI_CREDENTIALS_OF_DRIVER";

/// The mount that a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    source: String,
    options: Vec<String>,
    /// Variables of its process.
    pub(crate) environment: Environment,
    /// Nobody writes.
    pub(crate) read_only: bool,
    /// The group of its files, if a pod asked for one and the options do not say it.
    pub(crate) group: Option<u32>,
}

/// Variables, which are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(Vec<(String, String)>);

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Whether the kubelet says that the volume is written in its pod.
pub(crate) fn is_ephemeral(context: &HashMap<String, String>) -> bool {
    context.get(EPHEMERAL).is_some_and(|value| value == "true")
}

impl Volume {
    /// Of a PersistentVolume.
    ///
    /// # Errors
    /// What is wrong with its attributes, options or secret.
    pub(crate) fn persistent(
        context: &HashMap<String, String>,
        secrets: &HashMap<String, String>,
        access: &Access,
    ) -> Result<Self, Refusal> {
        let asked = Asked::of(context, secrets, access)?;
        Ok(asked.volume(access.read_only, None))
    }

    /// Of a volume that is written in a pod, whose container may only read if `read_only`.
    ///
    /// # Errors
    /// The same, and what `policy` does not allow.
    pub(crate) fn inline(
        context: &HashMap<String, String>,
        secrets: &HashMap<String, String>,
        access: &Access,
        read_only: bool,
        policy: &InlinePolicy,
    ) -> Result<Self, Refusal> {
        let asked = Asked::of(context, secrets, access)?;
        let options: Vec<&Asking> = asked.options.iter().filter(|option| !option.is_of_kubelet).collect();
        let names = options.iter().map(|option| option.name.as_str());
        policy.check(&asked.source, names, asked.environment.variables().map(|(name, _)| name))?;
        let settings: Vec<_> = options.iter().map(|option| (option.name.as_str(), option.value())).collect();
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        inline::check_values(settings, asked.environment.variables())?;
        Ok(asked.volume(access.read_only || read_only, policy.memory()))
    }

    /// What `forebay mount-helper` is told to mount.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether it shows what the workers of the cluster do.
    pub(crate) fn is_of_workers(&self) -> bool {
        self.source == WORKERS
    }

    /// What stands behind each of its `-o`.
    pub(crate) fn options(&self) -> &[String] {
        &self.options
    }

    /// Whether the kernel's table shows this source for a mount of this volume.
    pub(crate) fn is_shown_as(&self, source: &str) -> bool {
        if self.source == WORKERS { source.starts_with(SHOWN_OF_WORKERS) } else { source == self.source }
    }
}

impl Environment {
    /// The variables of a secret.
    ///
    /// # Errors
    /// A name that is none of a cloud's credentials.
    pub(crate) fn of(secrets: &HashMap<String, String>) -> Result<Self, Refusal> {
        let mut variables = Vec::with_capacity(secrets.len());
        for (name, value) in secrets {
            let is_of_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            let is_of_cloud = is_of_cloud(name) && name.bytes().all(is_of_name);
            if !is_of_cloud {
                let next = "its keys are variables that begin with AWS_, AZURE_ or GOOGLE_, as AWS_ACCESS_KEY_ID";
                return Err(Refusal::invalid(format!(
                    "the key {} of the secret is no such variable: {next}",
                    shown(name)
                )));
            }
            if value.contains('\0') {
                return Err(Refusal::invalid(format!("the value of {name} in the secret has a NUL in it")));
            }
            variables.push((name.clone(), value.clone()));
        }
        // In an order of their own, for two equal volumes to be equal.
        variables.sort();
        Ok(Self(variables))
    }

    /// Names and values.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a process with these variables may also have `name` of the driver's own: credentials do not mix.
    pub(crate) fn goes_with(&self, name: &str) -> bool {
        self.0.is_empty() || !is_of_cloud(name)
    }
}

/// Whether a variable may be a cloud's credentials.
pub(crate) fn is_of_cloud(name: &str) -> bool {
    CLOUDS.iter().any(|cloud| name.len() > cloud.len() && name.starts_with(cloud))
}

/// What somebody asks for, understood and not yet allowed.
struct Asked {
    source: String,
    options: Vec<Asking>,
    environment: Environment,
    group: Option<u32>,
}

/// One option.
struct Asking {
    name: String,
    /// With its value, as `forebay mount-helper` takes it.
    text: String,
    /// The SELinux label, which no user wrote.
    is_of_kubelet: bool,
}

impl Asked {
    fn of(
        context: &HashMap<String, String>,
        secrets: &HashMap<String, String>,
        access: &Access,
    ) -> Result<Self, Refusal> {
        fields::bounded(context, secrets)?;
        if let Some(name) = context.keys().find(|name| !is_known(name)) {
            let next = "there are `source` and `options`";
            return Err(Refusal::invalid(format!("volumeAttributes have no {}: {next}", shown(name))));
        }
        let source = source(context.get(SOURCE).map_or("", String::as_str))?;
        let mut options = Vec::new();
        for option in split(context.get(OPTIONS).map_or("", String::as_str)) {
            options.push(Asking::of(option, false)?);
        }
        for option in access.flags.iter().flat_map(|flags| split(flags)) {
            let is_label = option.starts_with("context=");
            options.push(Asking::of(option, is_label)?);
        }
        Ok(Self { source, options, environment: Environment::of(secrets)?, group: access.group })
    }

    fn volume(self, read_only: bool, memory: Option<&str>) -> Volume {
        let has = |name: &str| self.options.iter().any(|option| option.name == name);
        let read_only = read_only || has("ro");
        let group = self.group.filter(|_| !has("posix.gid"));
        let mut options = vec!["allow_other".to_owned()];
        options.extend((read_only && !has("ro")).then(|| "ro".to_owned()));
        // A mount of what workers serve with `memory` would be one of the workers.
        options.extend(memory.filter(|_| self.source != WORKERS).map(|memory| format!("memory={memory}")));
        if let Some(group) = group {
            options.push(format!("posix.gid={group}"));
            if !read_only {
                let modes = [("posix.dir_mode", "0775"), ("posix.file_mode", "0664")];
                let unset = modes.iter().filter(|(name, _)| !has(name));
                options.extend(unset.map(|(name, mode)| format!("{name}={mode}")));
            }
        }
        options.extend(self.options.into_iter().map(|option| option.text));
        Volume { source: self.source, options, environment: self.environment, read_only, group }
    }
}

impl Asking {
    /// # Errors
    /// When the driver sets it, it has no name, or it has characters that no option has.
    fn of(text: String, is_of_kubelet: bool) -> Result<Self, Refusal> {
        let text = text.trim().to_owned();
        // Quotes are not of the name: the mount helper takes them away, too.
        let name = text.split('=').next().unwrap_or_default().replace('"', "").trim().to_owned();
        if text.chars().any(char::is_control) {
            return Err(Refusal::invalid(format!("option {} has control characters", shown(&name))));
        }
        // Behind the `-o` of a command line, a `=` that comes first is passed over, and what follows would be the option.
        if name.is_empty() {
            return Err(Refusal::invalid(format!("option {} has no name", shown(&text))));
        }
        if OURS.contains(&name.as_str()) || (name == LABEL && !is_of_kubelet) {
            return Err(Refusal::invalid(format!("option {} is set by the driver: leave it out", shown(&name))));
        }
        Ok(Self { name, text, is_of_kubelet })
    }

    /// What stands behind its name, as the mount helper reads it.
    fn value(&self) -> String {
        self.text.split_once('=').map_or("", |(_, value)| value).replace('"', "").trim().to_owned()
    }
}

fn is_known(attribute: &str) -> bool {
    [SOURCE, OPTIONS].contains(&attribute) || ADDED.iter().any(|added| attribute.starts_with(added))
}

/// # Errors
/// When it is missing, or neither a URL nor what stands for workers.
fn source(text: &str) -> Result<String, Refusal> {
    if text.is_empty() {
        return Err(Refusal::invalid("volumeAttributes have no `source`: write it as `source: s3://bucket/prefix`"));
    }
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !rest.is_empty()
    });
    if text.chars().any(char::is_control) || !(is_url || text == WORKERS) {
        let next = "write a URL, as `s3://bucket/prefix`, or `forebay` for what the workers serve";
        return Err(Refusal::invalid(format!("the source {} is no URL: {next}", shown(text))));
    }
    Ok(text.to_owned())
}

/// The options of a list, as mount(8) separates them: a comma in double quotes is none. The quotes stay.
fn split(list: &str) -> Vec<String> {
    let (mut options, mut option, mut in_quotes) = (Vec::new(), String::new(), false);
    for letter in list.chars() {
        match letter {
            ',' if !in_quotes => options.push(std::mem::take(&mut option)),
            letter => {
                in_quotes ^= letter == '"';
                option.push(letter);
            }
        }
    }
    options.push(option);
    options.retain(|option| !option.trim().is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn access() -> Access {
        Access { read_only: false, single_writer: false, group: None, flags: Vec::new() }
    }

    fn persistent(attributes: &[(&str, &str)], access: &Access) -> Result<Volume, Refusal> {
        Volume::persistent(&map(attributes), &map(&[]), access)
    }

    #[test]
    fn attributes_and_mount_options_become_options_of_the_mount_helper() {
        let flags = vec!["memory=8GiB,metadata.ttl=5m".to_owned(), "ro".to_owned()];
        let attributes = [
            ("source", "s3://bucket/prefix"),
            ("options", "fuse.read_ahead=8MiB"),
            ("csi.storage.k8s.io/pod.name", "p"),
        ];
        let volume = persistent(&attributes, &Access { flags, ..access() }).unwrap();
        assert_eq!(volume.source(), "s3://bucket/prefix");
        assert_eq!(volume.options(), ["allow_other", "fuse.read_ahead=8MiB", "memory=8GiB", "metadata.ttl=5m", "ro"]);
        assert!(volume.read_only && volume.is_shown_as("s3://bucket/prefix") && !volume.is_shown_as("s3://bucket"));
    }

    #[test]
    fn a_volume_that_nobody_writes_is_mounted_so() {
        let volume = persistent(&[("source", "forebay")], &Access { read_only: true, ..access() }).unwrap();
        assert_eq!(volume.options(), ["allow_other", "ro"]);
        assert!(volume.is_shown_as("forebay://node1:29999") && !volume.is_shown_as("s3://bucket"));
    }

    #[test]
    fn the_group_of_a_pod_gets_the_files_unless_the_options_say_which_does() {
        let with_group = Access { group: Some(2000), ..access() };
        let volume = persistent(&[("source", "s3://b")], &with_group).unwrap();
        let expected = ["allow_other", "posix.gid=2000", "posix.dir_mode=0775", "posix.file_mode=0664"];
        assert_eq!((volume.options(), volume.group), (&expected.map(str::to_owned)[..], Some(2000)));
        let volume = persistent(&[("source", "s3://b")], &Access { read_only: true, ..with_group.clone() }).unwrap();
        assert_eq!(volume.options(), ["allow_other", "ro", "posix.gid=2000"]);
        let volume = persistent(&[("source", "s3://b"), ("options", "posix.gid=7")], &with_group).unwrap();
        assert_eq!((volume.options(), volume.group), (&["allow_other", "posix.gid=7"].map(str::to_owned)[..], None));
    }

    #[test]
    fn the_label_that_the_kubelet_adds_keeps_its_commas() {
        let label = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
        let flags = vec![label.to_owned()];
        let volume = persistent(&[("source", "s3://b")], &Access { flags, ..access() }).unwrap();
        assert_eq!(volume.options(), ["allow_other", label]);
        let policy = InlinePolicy::new(vec!["s3://".to_owned()], Some("64MiB".to_owned())).unwrap();
        let keys = map(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
        let access = Access { flags: vec![label.to_owned()], ..access() };
        let inline = Volume::inline(&map(&[("source", "s3://b")]), &keys, &access, true, &policy).unwrap();
        assert_eq!(inline.options(), ["allow_other", "ro", "memory=64MiB", label]);
        // Whoever makes a pod has no label to give.
        let wrong = Volume::inline(&map(&[("source", "s3://b"), ("options", label)]), &keys, &access, true, &policy);
        assert_eq!(wrong.unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn attributes_that_make_no_sense_are_refused_by_name() {
        let refused = |attributes: &[(&str, &str)]| persistent(attributes, &access()).unwrap_err();
        for wrong in ["", "bucket", "/data", "-f", "://bucket", "s3://", "s3 x://b", "s3://b\n"] {
            assert_eq!(refused(&[("source", wrong)]).code(), Code::InvalidArgument, "{wrong:?}");
        }
        assert!(refused(&[("source", "s3://b"), ("sources", "x")]).to_string().contains("`sources`"));
        for ours in ["log.file=/etc/passwd", "fuse.allow_other=false", "fuse.selinux_context=x", "context=x"] {
            let refusal = refused(&[("source", "s3://b"), ("options", ours)]).to_string();
            assert!(refusal.contains(ours.split('=').next().unwrap()), "{refusal}");
        }
        for nameless in ["=log.file=/etc/passwd", "\"\"=x", " = allow_other", "ro,=x"] {
            assert!(
                refused(&[("source", "s3://b"), ("options", nameless)]).to_string().contains("no name"),
                "{nameless}"
            );
        }
        assert!(refused(&[("source", "s3://b"), ("options", "ro\nx")]).to_string().contains("control"));
    }

    #[test]
    fn a_secret_is_credentials_and_is_never_shown() {
        let volume =
            |secrets: &[(&str, &str)]| Volume::persistent(&map(&[("source", "s3://b")]), &map(secrets), &access());
        let with = volume(&[("AWS_SECRET_ACCESS_KEY", "hunter2"), ("AWS_ACCESS_KEY_ID", "me")]).unwrap();
        let variables: Vec<_> = with.environment.variables().collect();
        assert_eq!(variables, [("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        assert!(!format!("{with:?}").contains("hunter2"));
        assert!(!with.options().iter().any(|option| option.contains("hunter2")));
        assert!(!with.environment.goes_with("AWS_PROFILE") && with.environment.goes_with("FOREBAY_CONFIG"));
        assert!(volume(&[]).unwrap().environment.goes_with("AWS_PROFILE"));
        for wrong in ["LD_PRELOAD", "PATH", "FOREBAY_WORKER_DISKS", "AWS_", "aws_secret", "AWS_A=B", "AWS_\n", ""] {
            let refusal = volume(&[(wrong, "hunter2")]).unwrap_err();
            assert_eq!(refusal.code(), Code::InvalidArgument, "{wrong:?}");
            assert!(!refusal.to_string().contains("hunter2"));
        }
        assert!(!volume(&[("AWS_ACCESS_KEY_ID", "hun\0ter")]).unwrap_err().to_string().contains("hun"));
    }

    #[test]
    fn a_pod_that_is_not_allowed_to_is_refused() {
        let policy = InlinePolicy::default();
        let refusal = Volume::inline(&map(&[("source", "s3://b")]), &map(&[]), &access(), false, &policy).unwrap_err();
        assert_eq!(refusal.code(), Code::PermissionDenied);
    }

    #[test]
    fn a_pod_names_no_server_by_what_it_says_of_a_region_or_an_account() {
        let policy = InlinePolicy::new(["s3://", "az://"].map(str::to_owned).to_vec(), None).unwrap();
        let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
        let volume = |options: &str, secrets: &[(&str, &str)]| {
            let attributes = map(&[("source", "s3://b"), ("options", options)]);
            Volume::inline(&attributes, &map(secrets), &access(), true, &policy)
        };
        assert!(volume("ro,origin.s3.region=\"eu-west-1\"", &keys).is_ok());
        for wrong in ["origin.s3.region=example.org/", "origin.s3.region=\"x,y\"", "origin.s3.region"] {
            assert_eq!(volume(wrong, &keys).unwrap_err().code(), Code::PermissionDenied, "{wrong}");
        }
        let refusal = volume("", &[keys[0], keys[1], ("AWS_REGION", "example.org/")]).unwrap_err();
        assert!(refusal.to_string().contains("AWS_REGION"), "{refusal}");
        let refusal = volume("", &[keys[0], ("AWS_SECRET_ACCESS_KEY", "")]).unwrap_err();
        assert!(refusal.to_string().contains("is empty"), "{refusal}");
    }

    #[test]
    fn only_the_kubelet_says_that_a_volume_is_its_pods() {
        assert!(is_ephemeral(&map(&[(EPHEMERAL, "true")])));
        assert!(!is_ephemeral(&map(&[(EPHEMERAL, "false")])) && !is_ephemeral(&map(&[])));
    }

    proptest! {
        #[test]
        fn whatever_the_options_are_none_of_ours_gets_in(
            options in "[a-z_.=,\" ]{0,40}(,|\")?(log.file|allow_other)?(=x)?"
        ) {
            if let Ok(volume) = persistent(&[("source", "s3://b"), ("options", &options)], &access()) {
                let name = |option: &String| option.split('=').next().unwrap_or_default().replace('"', "");
                let is_ours = |option: &String| OURS.contains(&name(option).trim());
                prop_assert!(!volume.options().iter().skip(1).any(is_ours));
            }
        }
    }
}
