//! What a fuzzer asks for as volumes: attributes, secrets and options, as users write them and the kubelet sends them on, and paths.

use std::collections::HashMap;
use std::path::{Component, Path};

use crate::error::Refusal;
use crate::fields::{Access, Place, VolumeId};
use crate::generated::csi::VolumeCapability;
use crate::generated::csi::volume_capability::access_mode::Mode;
use crate::generated::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::inline::InlinePolicy;
use crate::volume::Volume;

/// Where the kubelet has its files.
const KUBELET: &str = "/var/lib/kubelet";
/// What the driver sets itself.
const OF_THE_DRIVER: [&str; 4] = ["log.file", "allow_other", "fuse.allow_other", "fuse.selinux_context"];
/// A word that nothing but a secret has: where one has it, it is looked for.
const SECRET: &str = "hunter2";
/// What a pod may set, apart from what the driver sets for it. Written down once more than in `inline.rs`: that list is judged by it.
const OF_PODS: [&str; 11] = [
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
/// What pods may mount here.
const SOURCES: [&str; 4] = ["s3://team-a", "gs://", "az://", "https://data.example.org/"];
/// The longest sentence about what somebody wrote, in characters.
const MAX_TOLD: usize = 8192;

/// A volume as somebody asks for it.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// `volumeAttributes`.
    pub attributes: HashMap<String, String>,
    /// The secret.
    pub secrets: HashMap<String, String>,
    /// `mountOptions`.
    pub flags: Vec<String>,
    /// The group of the pod.
    pub group: String,
    /// What the file system is called.
    pub fs_type: String,
    /// How it is accessed: a number of CSI.
    pub mode: i32,
    /// The container may only read.
    pub read_only: bool,
}

/// Somebody asks for a volume, as a PersistentVolume and in a pod.
///
/// # Panics
/// When an option is understood in another way than by who mounts; when a volume has an option that the driver sets, or a pod one that
/// concerns others, a source that no admin named, another server, or no credentials of its own; when a secret is shown, or a refusal is
/// more than a line of a log.
pub fn volume(asked: &Asked) {
    let mount = MountVolume {
        fs_type: asked.fs_type.clone(),
        mount_flags: asked.flags.clone(),
        volume_mount_group: asked.group.clone(),
    };
    let access_mode = Some(AccessMode { mode: asked.mode });
    let capability = VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) };
    let access = match Access::of(Some(&capability)) {
        Ok(access) => access,
        Err(refusal) => return is_told(&refusal, asked),
    };
    let readers = [Mode::SingleNodeReaderOnly, Mode::MultiNodeReaderOnly].map(i32::from);
    assert_eq!(access.read_only, readers.contains(&asked.mode));
    let Ok(policy) = InlinePolicy::new(SOURCES.map(str::to_owned).to_vec(), Some("64MiB".to_owned())) else {
        unreachable!("they are beginnings of URLs")
    };
    match Volume::persistent(&asked.attributes, &asked.secrets, &access) {
        Ok(volume) => {
            is_understood(&volume, asked);
            assert_eq!(
                volume.read_only,
                access.read_only || mounted(&volume).iter().any(|(name, _)| name.trim() == "ro")
            );
        }
        Err(refusal) => is_told(&refusal, asked),
    }
    match Volume::inline(&asked.attributes, &asked.secrets, &access, asked.read_only, &policy) {
        Ok(volume) => {
            is_understood(&volume, asked);
            is_of_a_pod(&volume, asked);
            assert!(volume.read_only || !(access.read_only || asked.read_only));
        }
        Err(refusal) => is_told(&refusal, asked),
    }
    let nothing = InlinePolicy::default();
    assert!(Volume::inline(&asked.attributes, &asked.secrets, &access, asked.read_only, &nothing).is_err());
}

/// The kubelet names a path and a volume.
///
/// # Panics
/// When a path leads out of the kubelet's directory, or the name of a file is more than that.
pub fn place(path: &str, id: &str) {
    match Place::of(Path::new(KUBELET), path, "target_path") {
        Ok(place) => {
            assert_eq!(Path::new(KUBELET).join(place.below()).as_os_str(), path);
            assert!(place.below().components().all(|part| matches!(part, Component::Normal(_))));
        }
        Err(refusal) => is_told(&refusal, &Asked::default()),
    }
    match VolumeId::of(id) {
        Ok(known) => {
            let name = known.file_name();
            assert!(known.as_str() == id && name.len() <= 57);
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
        }
        Err(refusal) => is_told(&refusal, &Asked::default()),
    }
}

/// The options as `forebay mount-helper` understands them, behind the driver's: names and values.
fn mounted(volume: &Volume) -> Vec<(String, Option<String>)> {
    let arguments = volume.options().iter().map(|option| format!("-o{option}"));
    let mut options = Vec::new();
    for argument in arguments {
        // A `=` right behind a flag of one letter is passed over.
        let list = argument.strip_prefix("-o").unwrap_or_default();
        let list = list.strip_prefix('=').unwrap_or(list);
        let (mut option, mut in_quotes) = (String::new(), false);
        for letter in list.chars().chain([',']) {
            match letter {
                '"' => in_quotes = !in_quotes,
                ',' if !in_quotes => options.push(std::mem::take(&mut option)),
                letter => option.push(letter),
            }
        }
        // A quote that nobody closed has the last comma in it, which was none of the list's.
        if in_quotes {
            option.pop();
            options.push(option);
        }
    }
    let split = |option: String| match option.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (option, None),
    };
    options.into_iter().filter(|option| !option.is_empty()).map(split).collect()
}

/// The volume means what it says to who mounts it.
fn is_understood(volume: &Volume, asked: &Asked) {
    let options = mounted(volume);
    assert_eq!(options.len(), volume.options().len(), "one is one: {options:?}");
    assert_eq!(options.first(), Some(&("allow_other".to_owned(), None)));
    for (name, value) in &options[1..] {
        let text = format!("{name}={}", value.as_deref().unwrap_or_default());
        assert!(!name.trim().is_empty() && !text.contains(char::is_control), "{text:?}");
        assert!(!OF_THE_DRIVER.contains(&name.trim()), "{text:?}");
        let is_label = name == "context" && value.is_some();
        let is_of_kubelet = is_label && asked.flags.iter().any(|flags| flags.contains("context="));
        assert!(name.trim() != "context" || is_of_kubelet, "nobody else gives labels");
    }
    assert_eq!(Some(volume.source()), asked.attributes.get("source").map(String::as_str));
    assert!(!volume.source().contains(char::is_control) && !volume.source().starts_with('-'));
    for (name, value) in volume.environment.variables() {
        assert!(["AWS_", "AZURE_", "GOOGLE_"].iter().any(|cloud| name.starts_with(cloud)));
        assert_eq!(asked.secrets.get(name).map(String::as_str), Some(value));
        assert!(!value.contains('\0') && !name.contains(['=', '\0']));
    }
    keeps_secrets(&format!("{volume:?}"), asked);
}

/// What is shown or told has nothing of a secret in it.
fn keeps_secrets(told: &str, asked: &Asked) {
    let attributes = asked.attributes.iter().flat_map(|(name, value)| [name, value]);
    let rest = asked.flags.iter().chain([&asked.group, &asked.fs_type]).chain(asked.secrets.keys());
    let is_said_elsewhere = attributes.chain(rest).any(|text| text.contains(SECRET));
    assert!(is_said_elsewhere || !told.contains(SECRET), "{told:?}");
}

/// What a pod has concerns the pod alone.
fn is_of_a_pod(volume: &Volume, asked: &Asked) {
    let source = volume.source();
    let begins = |beginning: &str| {
        let rest = source.strip_prefix(beginning);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || beginning.ends_with('/'))
    };
    assert!(SOURCES.iter().any(|beginning| begins(beginning)), "{source}");
    assert!(!source.contains(['%', '?', '#', '@', '\\']) && !source.split('/').any(|part| part == ".."));
    let is_label = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    for (name, value) in &mounted(volume)[1..] {
        let is_drivers = name == "context" || (name == "memory" && value.as_deref() == Some("64MiB"));
        assert!(is_drivers || OF_PODS.contains(&name.trim()), "{name:?}={value:?}");
        assert!(name.trim() != "origin.s3.region" || value.as_deref().is_some_and(|value| is_label(value.trim())));
    }
    let has = |name: &str| asked.secrets.get(name).is_some_and(|value| !value.is_empty());
    let scheme = source.split_once("://").map(|(scheme, _)| scheme);
    assert!(match scheme {
        Some("s3") => has("AWS_ACCESS_KEY_ID") && has("AWS_SECRET_ACCESS_KEY"),
        Some("gs") => has("GOOGLE_SERVICE_ACCOUNT_KEY"),
        Some("az") => has("AZURE_STORAGE_ACCOUNT_NAME"),
        other => other == Some("https"),
    });
    for name in ["AWS_REGION", "AWS_DEFAULT_REGION", "AZURE_STORAGE_ACCOUNT_NAME"] {
        assert!(asked.secrets.get(name).is_none_or(|value| is_label(value)));
    }
    for name in ["AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS"] {
        assert!(!asked.secrets.contains_key(name), "{name}");
    }
}

/// A person reads it, and no secret is in it.
fn is_told(refusal: &Refusal, asked: &Asked) {
    let told = refusal.to_string();
    assert!(!told.is_empty() && !told.contains(char::is_control) && told.chars().count() <= MAX_TOLD, "{told:?}");
    keeps_secrets(&told, asked);
}
