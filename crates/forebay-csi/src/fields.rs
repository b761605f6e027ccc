//! What a request says: ids, paths, capabilities, each within limits.
//!
//! The kubelet is root, and what it sends on is what users wrote: the handle of a PersistentVolume, attributes in a
//! pod.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::Refusal;
use crate::generated::csi::VolumeCapability;
use crate::generated::csi::volume_capability::AccessType;
use crate::generated::csi::volume_capability::access_mode::Mode;

/// The longest id, in bytes. CSI's own limit is 128; handles of PersistentVolumes are written by people.
const MAX_ID: usize = 256;
/// The kernel's longest path, in bytes.
const MAX_PATH: usize = 4095;
/// All names and values of a map together, in bytes. CSI lets a plugin refuse more than 4 KiB.
const MAX_MAP: usize = 16 << 10;
/// The same of secrets, which have certificates and keys of service accounts in them.
const MAX_SECRETS: usize = 64 << 10;
/// All options of `mountOptions` together, in bytes.
const MAX_FLAGS: usize = 4 << 10;
/// What a volume may be said to have as its file system. `ext4` and the like are no property of a bucket.
const FILE_SYSTEMS: [&str; 3] = ["", "forebay", "fuse.forebay"];

/// The id of a volume: the `volumeHandle` of a PersistentVolume, or a name that the kubelet gives an inline volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VolumeId(String);

impl VolumeId {
    /// # Errors
    /// When it is missing, too long, or has control characters.
    pub(crate) fn of(text: &str) -> Result<Self, Refusal> {
        present("volume_id", text)?;
        if text.len() > MAX_ID || text.chars().any(char::is_control) {
            return Err(Refusal::invalid(format!(
                "volume_id has {} bytes or control characters: use at most {MAX_ID} bytes of text",
                text.len()
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// The id as it was sent.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A name for files of this volume: its beginning for people, and a hash of all of it.
    pub(crate) fn file_name(&self) -> String {
        const SHOWN: usize = 40;
        let plain = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte) } else { '-' };
        let beginning: String = self.0.bytes().take(SHOWN).map(plain).collect();
        let hash = blake3::hash(self.0.as_bytes()).to_hex();
        format!("{beginning}-{}", &hash.as_str()[..16])
    }
}

/// A path below the kubelet's directory, without that directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// Of what `field` of a request says.
    ///
    /// # Errors
    /// When it is missing, or no plain path below `kubelet`.
    pub(crate) fn of(kubelet: &Path, path: &str, field: &str) -> Result<Self, Refusal> {
        present(field, path)?;
        let no_path = |why: &str| Refusal::invalid(format!("{field} {why}: {}", shown(path)));
        if path.len() > MAX_PATH || path.chars().any(char::is_control) {
            return Err(no_path("is too long or has control characters"));
        }
        let Some(below_root) = path.strip_prefix('/') else { return Err(no_path("is not absolute")) };
        if below_root.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(no_path("has empty parts, `.` or `..` in it"));
        }
        match Path::new(path).strip_prefix(kubelet) {
            Ok(below) if !below.as_os_str().is_empty() => Ok(Self(below.to_owned())),
            _ => Err(no_path(&format!("is not below the kubelet's directory {}", kubelet.display()))),
        }
    }

    /// The path below the kubelet's directory.
    pub(crate) fn below(&self) -> &Path {
        &self.0
    }
}

/// How a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Nobody writes.
    pub(crate) read_only: bool,
    /// One pod has it, and no other one.
    pub(crate) single_writer: bool,
    /// The group that shall have it: the `fsGroup` of a pod.
    pub(crate) group: Option<u32>,
    /// `mountOptions`.
    pub(crate) flags: Vec<String>,
}

impl Access {
    /// # Errors
    /// When it is missing, or is for something that a bucket is not: a block device, a file system of disks.
    pub(crate) fn of(capability: Option<&VolumeCapability>) -> Result<Self, Refusal> {
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let mount = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) => {
                return Err(Refusal::invalid("the volume is no block device: set volumeMode: Filesystem"));
            }
            None => return Err(missing("volume_capability.access_type")),
        };
        let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |access| access.mode());
        if mode == Mode::Unknown {
            return Err(missing("volume_capability.access_mode"));
        }
        if !FILE_SYSTEMS.contains(&mount.fs_type.as_str()) {
            return Err(Refusal::invalid(format!(
                "fsType {} is none of this driver: leave it out",
                shown(&mount.fs_type)
            )));
        }
        if mount.mount_flags.iter().map(String::len).sum::<usize>() > MAX_FLAGS {
            return Err(Refusal::invalid(format!("mountOptions have more than {MAX_FLAGS} bytes")));
        }
        Ok(Self {
            read_only: matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly),
            single_writer: mode == Mode::SingleNodeSingleWriter,
            group: group(&mount.volume_mount_group)?,
            flags: mount.mount_flags.clone(),
        })
    }
}

fn group(text: &str) -> Result<Option<u32>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| Refusal::invalid(format!("the group {} is no number", shown(text))))
}

/// Checks how much the attributes of a volume are.
///
/// # Errors
/// When they are more than the driver takes.
pub(crate) fn bounded(context: &HashMap<String, String>, secrets: &HashMap<String, String>) -> Result<(), Refusal> {
    let length =
        |map: &HashMap<String, String>| map.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if length(context) > MAX_MAP {
        return Err(Refusal::invalid(format!("volumeAttributes have more than {MAX_MAP} bytes")));
    }
    if length(secrets) > MAX_SECRETS {
        return Err(Refusal::invalid(format!("the secret has more than {MAX_SECRETS} bytes")));
    }
    Ok(())
}

fn present(field: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() { Err(missing(field)) } else { Ok(()) }
}

fn missing(field: &str) -> Refusal {
    Refusal::invalid(format!("{field} is missing"))
}

/// A piece of what somebody wrote, for a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN: usize = 200;
    let beginning: String = text.chars().take(SHOWN).collect();
    let rest = if beginning.len() < text.len() { " …" } else { "" };
    format!("`{}`{rest}", beginning.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};
    use proptest::prelude::*;
    use tonic::Code;

    const KUBELET: &str = "/var/lib/kubelet";

    fn place(path: &str) -> Result<Place, Refusal> {
        Place::of(Path::new(KUBELET), path, "target_path")
    }

    fn capability(mode: Mode, mount: MountVolume) -> VolumeCapability {
        let access_mode = Some(AccessMode { mode: mode.into() });
        VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) }
    }

    #[test]
    fn a_path_is_one_below_the_kubelets_directory() {
        let good = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pv/mount";
        assert_eq!(place(good).unwrap().below(), Path::new("pods/1/volumes/kubernetes.io~csi/pv/mount"));
        for wrong in [
            "",
            "/",
            "relative/path",
            "/etc/passwd",
            "/var/lib/kubelet",
            "/var/lib/kubelet/",
            "/var/lib/kubelets/a",
            "/var/lib/kubelet/../../../etc",
            "/var/lib/kubelet/pods/./a",
            "/var/lib/kubelet/pods//a",
            "/var/lib/kubelet/pods/a/",
            "/var/lib/kubelet/a\nb",
            "/var/lib/kubelet/a\0b",
        ] {
            assert_eq!(place(wrong).unwrap_err().code(), Code::InvalidArgument, "{wrong:?}");
        }
        assert!(place(&format!("{KUBELET}/{}", "a".repeat(MAX_PATH))).is_err());
    }

    #[test]
    fn an_id_is_text_of_bounded_length_and_names_a_file() {
        for wrong in ["", "a\nb", "\0", &"a".repeat(MAX_ID + 1)] {
            assert_eq!(VolumeId::of(wrong).unwrap_err().code(), Code::InvalidArgument, "{wrong:?}");
        }
        let [one, other] = ["../../a b", "../../a c"].map(|id| VolumeId::of(id).unwrap().file_name());
        assert!(one.starts_with("------a-b-") && one != other, "{one} {other}");
    }

    #[test]
    fn a_capability_says_who_reads_and_writes() {
        let access = |mode| Access::of(Some(&capability(mode, MountVolume::default()))).unwrap();
        assert!(access(Mode::MultiNodeReaderOnly).read_only && access(Mode::SingleNodeReaderOnly).read_only);
        assert!(!access(Mode::MultiNodeMultiWriter).read_only && !access(Mode::SingleNodeWriter).single_writer);
        assert!(access(Mode::SingleNodeSingleWriter).single_writer);
        let mount = MountVolume { volume_mount_group: "2000".into(), ..MountVolume::default() };
        assert_eq!(Access::of(Some(&capability(Mode::MultiNodeReaderOnly, mount))).unwrap().group, Some(2000));
    }

    #[test]
    fn a_capability_that_a_bucket_does_not_have_is_refused() {
        let mode = |mode: Mode| Some(AccessMode { mode: mode.into() });
        let mount = |fs_type: &str, group: &str, flags: usize| MountVolume {
            fs_type: fs_type.to_owned(),
            volume_mount_group: group.to_owned(),
            mount_flags: vec!["a".repeat(flags)],
        };
        let block = Some(AccessType::Block(BlockVolume {}));
        let wrong = [
            VolumeCapability { access_mode: mode(Mode::MultiNodeReaderOnly), access_type: None },
            VolumeCapability { access_mode: mode(Mode::MultiNodeReaderOnly), access_type: block },
            VolumeCapability { access_mode: None, access_type: Some(AccessType::Mount(MountVolume::default())) },
            capability(Mode::Unknown, MountVolume::default()),
            capability(Mode::MultiNodeReaderOnly, mount("ext4", "", 0)),
            capability(Mode::MultiNodeReaderOnly, mount("", "staff", 0)),
            capability(Mode::MultiNodeReaderOnly, mount("", "", MAX_FLAGS + 1)),
        ];
        for wrong in wrong {
            assert_eq!(Access::of(Some(&wrong)).unwrap_err().code(), Code::InvalidArgument, "{wrong:?}");
        }
        assert_eq!(Access::of(None).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let map = |length: usize| HashMap::from([("name".to_owned(), "a".repeat(length))]);
        assert!(bounded(&map(100), &map(MAX_MAP)).is_ok());
        assert!(bounded(&map(MAX_MAP), &map(0)).is_err() && bounded(&map(0), &map(MAX_SECRETS)).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_sent_a_place_is_below_the_directory(
            path in "(/var/lib/kubelet)?(/[a.~]{0,3}|/|\\PC{0,4}){0,6}"
        ) {
            if let Ok(place) = place(&path) {
                let joined = Path::new(KUBELET).join(place.below());
                prop_assert_eq!(joined.as_os_str(), path.as_str());
                prop_assert!(place.below().components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }

        #[test]
        fn whatever_an_id_is_its_file_name_is_plain(id in "\\PC{1,300}") {
            if let Ok(id) = VolumeId::of(&id) {
                let name = id.file_name();
                prop_assert!(name.len() <= 57 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
            }
        }
    }
}
