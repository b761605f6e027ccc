//! Which option of `juicefs mount` is which key, and how JuiceFS writes values.
//!
//! Sizes without a unit are MiB but for `--max-write`, units count by 1024, and times without one are seconds. Names and meanings are
//! those of JuiceFS's public documentation. One mount is one `forebay mount`, or one `forebay up` where nothing is shared.

use forebay_types::ByteSize;

use super::command::Written as Line;
use super::fuse;
use super::translation::Translation;

/// What becomes of an option.
#[derive(Clone, Copy, Debug)]
enum Mapping {
    /// A key, with the value written another way.
    Key(&'static str, Value),
    /// An option without a value that sets a key.
    Switch(&'static str, &'static str),
    /// The cache's directories, its size in all and the room to leave, which make `worker.disks` together.
    CacheDir,
    CacheSize,
    FreeSpace,
    /// `--rdma-network`.
    RdmaNetwork,
    /// Memory for what is read ahead, and for RDMA that which is registered.
    BufferSize,
    /// How blocks are served from disk, or that they are not.
    ServeMode,
    /// Requests at once: to the origin for a mount that caches, to workers for one that only reads.
    MaxDownloads,
    /// `HOST:PORT` of the page with metrics.
    Metrics,
    /// Options for libfuse.
    FuseOptions,
    /// Only reads from the group.
    NoSharing,
    /// A flag of `forebay mount`, without a value.
    Flag(&'static str),
    /// Nothing to set, and why; with a value, and without.
    Remark(&'static str),
    RemarkOnSwitch(&'static str),
}

/// How JuiceFS writes a value.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// As we do.
    Alike,
    /// `1M`: bytes without a unit.
    Bytes,
    /// `60` and `1m`: seconds without a unit.
    Seconds,
    /// `256`, MiB: as many blocks of 4 MiB.
    Blocks,
}

const OPTIONS: &[(&str, Mapping)] = {
    use Mapping::{
        BufferSize, CacheDir, CacheSize, Flag, FreeSpace, FuseOptions, Key, MaxDownloads, Metrics, NoSharing,
        RdmaNetwork, Remark, RemarkOnSwitch, ServeMode, Switch,
    };
    use Value::{Alike, Blocks, Bytes, Seconds};
    const TTL: &str = "see metadata.ttl, which bounds how old attributes and listings may be";
    const WRITES: &str = "what is written goes through to the origin, and is there when fsync or close returns";
    const CHECKED: &str = "needless, every sector's CRC32C is checked, on disk and in memory";
    &[
        ("--attr-cache", Remark(TTL)),
        ("--background", RemarkOnSwitch("needless, `forebay mount` goes to the background by itself")),
        ("--backup-meta", Remark("needless, there is no metadata engine")),
        ("--buffer-size", BufferSize),
        ("--cache-dir", CacheDir),
        ("--cache-eviction", Remark("needless, eviction is SIEVE, which scans do not empty")),
        ("--cache-group", Key("cluster.cache_group", Alike)),
        ("--cache-mode", Remark("needless, what is cached is in preallocated files")),
        ("--cache-partial-only", RemarkOnSwitch("see `forebay policy --skip-cache`, by path")),
        ("--cache-size", CacheSize),
        ("--cache-try-dio", Switch("worker.disk.serve", "dio")),
        ("--dir-entry-cache", Remark(TTL)),
        ("--entry-cache", Remark(TTL)),
        ("--fill-group-cache", RemarkOnSwitch("what is written is cached when it is first read")),
        ("--foreground", Flag("--foreground")),
        ("--free-space-ratio", FreeSpace),
        ("--get-timeout", Key("origin.request_timeout", Seconds)),
        ("--group-ip", Remark("name the interface that has it: network.group_network")),
        ("--group-network", Key("network.group_network", Alike)),
        ("--group-port", Key("worker.rpc.port", Alike)),
        ("--group-weight", Key("worker.weight", Alike)),
        ("--iorpc-mode", ServeMode),
        ("--io-retries", Key("origin.retry.max_attempts", Alike)),
        ("--log", Key("log.file", Alike)),
        ("--max-downloads", MaxDownloads),
        ("--max-readahead", Key("client.prefetch.max_part_number", Blocks)),
        ("--max-uploads", Remark("see write.memory, which bounds the parts that are sent at once")),
        ("--max-write", Key("fuse.max_read", Bytes)),
        ("--metrics", Metrics),
        ("--no-bgjob", RemarkOnSwitch("needless, there is no metadata engine")),
        ("--no-sharing", NoSharing),
        (
            "--no-syslog",
            RemarkOnSwitch("needless, a mount in the background logs to a file of its own, or to log.file"),
        ),
        ("--no-usage-report", RemarkOnSwitch("needless, nothing is reported to anybody")),
        ("--open-cache", Remark(TTL)),
        ("--prefetch", Remark("blocks are fetched ahead of sequential readers only: client.prefetch.max_part_number")),
        ("--put-timeout", Key("write.timeout", Seconds)),
        ("--rdma-network", RdmaNetwork),
        ("--read-only", Switch("write.mode", "none")),
        ("--subdir", Remark("name it in the origin's URL: s3://bucket/SUBDIR")),
        ("--use-iorpc", RemarkOnSwitch("needless, blocks go over a protocol of Forebay's own, with TCP and with RDMA")),
        ("--verify-cache-checksum", Remark(CHECKED)),
        ("--writeback", RemarkOnSwitch(WRITES)),
        ("--upload-delay", Remark(WRITES)),
        ("-d", RemarkOnSwitch("needless, `forebay mount` goes to the background by itself")),
        ("-f", Flag("--foreground")),
        ("-o", FuseOptions),
    ]
};

/// Variables that mean something to JuiceFS.
const RETRY_VARIABLE: &str = "IORPC_RDMA_RETRY_DURATION";
/// What JuiceFS leaves free of a disk.
const FREE_SPACE_RATIO: f64 = 0.1;
/// JuiceFS's default for `--cache-size`.
const CACHE_SIZE: &str = "100GiB";

/// Every option, and what becomes of it.
pub(super) fn documented() -> Vec<(&'static str, String)> {
    OPTIONS.iter().map(|(name, mapping)| (*name, mapping.documented())).collect()
}

impl Mapping {
    fn documented(self) -> String {
        match self {
            Self::Key(key, _) => format!("`{key}`"),
            Self::Switch(key, value) => format!("`{key} = \"{value}\"`"),
            Self::CacheDir => "`worker.disks`; `memory`: `worker.memory.size`".to_owned(),
            Self::CacheSize => {
                "the size in `worker.disks`, of each directory; -1: what `--free-space-ratio` allows; 0: `--no-sharing`"
                    .to_owned()
            }
            Self::FreeSpace => "the share of a disk in `worker.disks`, if `--cache-size` is -1".to_owned(),
            Self::RdmaNetwork => "`network.rdma.data.enabled = true` and `network.rdma.data.network`".to_owned(),
            Self::BufferSize => {
                "`client.memory.size`, and with RDMA `network.rdma.data.buffer_pool.max_size`".to_owned()
            }
            Self::ServeMode => "`worker.disk.serve`; `disable`: `--no-sharing`".to_owned(),
            Self::MaxDownloads => {
                "`origin.max_concurrency`; of a mount that only reads, `client.max_concurrency`".to_owned()
            }
            Self::Metrics => "`client.web.bind.host` and `client.web.port`".to_owned(),
            Self::FuseOptions => "`fuse.…`, `posix.…`, as they are called there".to_owned(),
            Self::NoSharing => "`--no-sharing`".to_owned(),
            Self::Flag(flag) => format!("`{flag}`"),
            Self::Remark(why) | Self::RemarkOnSwitch(why) => why.to_owned(),
        }
    }

    fn takes_a_value(self) -> bool {
        !matches!(self, Self::Switch(..) | Self::NoSharing | Self::Flag(_) | Self::RemarkOnSwitch(_))
    }
}

/// What several options say together.
#[derive(Default)]
struct Cache {
    /// Directories, and the line of the option.
    directories: Option<(usize, Vec<String>)>,
    /// Bytes in all, `None` for as many as there are.
    size: Option<(usize, String, Option<ByteSize>)>,
    free_space: Option<f64>,
    no_sharing: bool,
    /// `--buffer-size`, as written and in bytes.
    buffer: Option<(String, ByteSize)>,
    /// `--max-downloads`.
    downloads: Option<String>,
}

/// Takes over the one mount that is wanted.
pub(super) fn translate(translation: &mut Translation<'_>, mounts: &[Line]) {
    let [mount, others @ ..] = mounts else { return };
    for other in others {
        translation.problem(other.line, "a second mount: import one at a time".to_owned());
    }
    let line = mount.line;
    for (at, name, value) in &mount.variables {
        if name == RETRY_VARIABLE {
            let ours = Value::Seconds.translate(value);
            translation.set(*at, (RETRY_VARIABLE, value), "network.rdma.data.retry_duration", ours);
        }
    }
    let mut words = mount.words.clone();
    let (mut cache, mut operands, mut flags) = (Cache::default(), Vec::new(), Vec::new());
    while let Some(word) = words.pop_front() {
        if !word.starts_with('-') {
            operands.push(word);
            continue;
        }
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        let Some((known, mapping)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            translation.unknown(line, &name, OPTIONS.iter().map(|(name, _)| *name));
            continue;
        };
        if mapping.takes_a_value() && value.is_none() {
            value = words.pop_front();
        }
        match value {
            None if mapping.takes_a_value() => translation.problem(line, format!("{known} has no value")),
            // `--writeback=false`.
            Some(off) if !mapping.takes_a_value() && off == "false" => {}
            value => apply(
                translation,
                line,
                (known, value.as_deref().unwrap_or_default()),
                *mapping,
                &mut cache,
                &mut flags,
            ),
        }
    }
    if let Some((value, size)) = &cache.buffer
        && translation.config().network_rdma_data_enabled
    {
        let source = ("--buffer-size", value.as_str());
        translation.set(line, source, "network.rdma.data.buffer_pool.max_size", Ok(size.to_string()));
    }
    of_cache(translation, line, &mut cache);
    if let Some(value) = &cache.downloads {
        let key = if cache.no_sharing { "client.max_concurrency" } else { "origin.max_concurrency" };
        translation.set(line, ("--max-downloads", value), key, Ok(value.clone()));
    }
    say_command(translation, line, &operands, &cache, &flags);
}

fn apply(
    translation: &mut Translation<'_>,
    line: usize,
    source: (&'static str, &str),
    mapping: Mapping,
    cache: &mut Cache,
    flags: &mut Vec<&'static str>,
) {
    let (name, value) = source;
    match mapping {
        Mapping::Key(key, written) => translation.set(line, source, key, written.translate(value)),
        Mapping::Switch(key, ours) => translation.set(line, source, key, Ok(ours.to_owned())),
        Mapping::CacheDir => cache.directories = Some((line, value.split(':').map(str::to_owned).collect())),
        Mapping::CacheSize if value.trim() == "-1" => cache.size = Some((line, value.to_owned(), None)),
        Mapping::CacheSize => match mebibytes(value) {
            Ok(size) => cache.size = Some((line, value.to_owned(), Some(size))),
            Err(why) => translation.problem(line, format!("bad value for {name}: {why}")),
        },
        Mapping::FreeSpace => match value.parse::<f64>().ok().filter(|ratio| (0.0..1.0).contains(ratio)) {
            Some(ratio) => cache.free_space = Some(ratio),
            None => translation.problem(line, format!("bad value for {name}: `{value}` is not a ratio, as in `0.1`")),
        },
        Mapping::RdmaNetwork => {
            translation.set(line, source, "network.rdma.data.enabled", Ok("true".to_owned()));
            translation.set(line, source, "network.rdma.data.network", Ok(value.replace(':', ",")));
        }
        Mapping::BufferSize => {
            let size = mebibytes(value);
            cache.buffer = size.as_ref().ok().map(|size| (value.to_owned(), *size));
            translation.set(line, source, "client.memory.size", size.map(|size| size.to_string()));
        }
        Mapping::ServeMode if value == "disable" => cache.no_sharing = true,
        Mapping::ServeMode => translation.set(line, source, "worker.disk.serve", Ok(value.to_owned())),
        Mapping::MaxDownloads => cache.downloads = Some(value.to_owned()),
        Mapping::Metrics => match value.rsplit_once(':') {
            Some((host, port)) => {
                translation.set(line, source, "client.web.bind.host", Ok(host.trim_matches(['[', ']']).to_owned()));
                translation.set(line, source, "client.web.port", Ok(port.to_owned()));
            }
            None => translation.problem(line, format!("bad value for {name}: `{value}` is not HOST:PORT")),
        },
        Mapping::FuseOptions => of_fuse(translation, line, value),
        Mapping::NoSharing => cache.no_sharing = true,
        Mapping::Flag(flag) => flags.push(flag),
        Mapping::Remark(why) | Mapping::RemarkOnSwitch(why) => translation.note(line, format!("{name}: {why}")),
    }
}

fn of_fuse(translation: &mut Translation<'_>, line: usize, value: &str) {
    for option in value.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let of_every_file_system = option.starts_with('_')
            || option.starts_with("x-")
            || ["rw", "defaults", "auto", "noauto", "user", "users", "nofail", "noatime", "nodev", "nosuid"]
                .contains(&option);
        if of_every_file_system {
            translation.note(line, format!("mount option {option:?}: keep it where the mount is started"));
            continue;
        }
        match fuse::mount_option(option) {
            Ok((key, value)) => translation.set(line, ("-o", option), key, Ok(value.to_owned())),
            Err(remark) => translation.note(line, format!("mount option {option:?}: {remark}")),
        }
    }
}

/// Directories, size and room become disks, where the mount has a cache that it shares or keeps for itself.
fn of_cache(translation: &mut Translation<'_>, line: usize, cache: &mut Cache) {
    let empty = cache.size.as_ref().is_some_and(|(.., size)| *size == Some(ByteSize::default()));
    if cache.no_sharing || empty {
        if !cache.no_sharing && translation.line_of("cluster.cache_group").is_some() {
            translation.note(line, "--cache-size=0: the mount only reads from its group".to_owned());
        }
        cache.no_sharing = true;
        return;
    }
    let Some((at, directories)) = &cache.directories else { return };
    let (size, written) = match &cache.size {
        Some((_, written, size)) => (*size, written.as_str()),
        None => (CACHE_SIZE.parse().ok(), CACHE_SIZE),
    };
    let source = |directory: &str| format!("--cache-dir {directory}, --cache-size {written}");
    if let [memory] = directories.as_slice()
        && memory == "memory"
    {
        let ours = size.map(|size| size.to_string()).ok_or_else(|| "memory needs a --cache-size".to_owned());
        return translation.set(*at, (&source("memory"), written), "worker.memory.size", ours);
    }
    let has_wildcard = directories.iter().any(|directory| directory.contains(['*', '?', '[']));
    let each = match size {
        Some(size) => ByteSize::bytes(size.as_u64() / (directories.len() as u64).max(1)).to_string(),
        // What is left free is left free.
        None => format!("{:.0}%", (1.0 - cache.free_space.unwrap_or(FREE_SPACE_RATIO)) * 100.0),
    };
    if has_wildcard && size.is_some() {
        let remark = "--cache-size is for all directories together, a size in worker.disks for each: divide it by how many there are";
        translation.note(*at, remark.to_owned());
    }
    let disks: Vec<String> = directories.iter().map(|directory| format!("{directory}:{each}")).collect();
    translation.set(*at, (&source(&directories.join(":")), written), "worker.disks", Ok(disks.join(",")));
}

/// Says what to type, and what else is different.
fn say_command(
    translation: &mut Translation<'_>,
    line: usize,
    operands: &[String],
    cache: &Cache,
    flags: &[&'static str],
) {
    let [_, mountpoint] = operands else {
        let operands = operands.join(" ");
        let why = format!(
            "expected a volume and a mountpoint, not `{operands}`: write values with `=`, as in --option=value"
        );
        return translation.problem(line, why);
    };
    let group = translation.line_of("cluster.cache_group").map(|_| translation.config().cluster_cache_group.clone());
    let mountpoint = shlex::try_quote(mountpoint).unwrap_or_default();
    let mut command = match &group {
        None if cache.no_sharing => format!("forebay mount {mountpoint} --etcd URL"),
        None => format!("forebay up ORIGIN {mountpoint}"),
        Some(group) => {
            let group = shlex::try_quote(group.as_str()).unwrap_or_default();
            format!("forebay mount {mountpoint} --etcd URL --cache-group {group}")
        }
    };
    if group.is_some() && cache.no_sharing {
        command += " --no-sharing";
    }
    for flag in flags {
        command = format!("{command} {flag}");
    }
    translation.comment(format!("The mount: {command} --config THIS_FILE"));
    let chunks = "a volume of JuiceFS keeps its files in chunks, which Forebay does not read: copy them to a bucket as they are \
                  (`juicefs sync`), and name that as the origin (`forebay mounts add`, `forebay up`)";
    translation.note(line, chunks.to_owned());
}

impl Value {
    fn translate(self, value: &str) -> Result<String, String> {
        match self {
            Self::Alike => Ok(value.to_owned()),
            Self::Bytes => bytes(value).map(|size| size.to_string()),
            Self::Seconds if value.parse::<f64>().is_ok() => Ok(format!("{value}s")),
            Self::Seconds => Ok(value.to_owned()),
            Self::Blocks => mebibytes(value).map(|size| size.as_u64().div_ceil(4 << 20).to_string()),
        }
    }
}

fn mebibytes(value: &str) -> Result<ByteSize, String> {
    match value.trim().parse::<u64>() {
        Ok(mebibytes) => {
            let bytes = mebibytes.checked_mul(1 << 20).ok_or_else(|| format!("`{value}` MiB are too many"))?;
            Ok(ByteSize::bytes(bytes))
        }
        Err(_) => bytes(value),
    }
}

/// `1M`, `1MB` and `1MiB` are the same there.
fn bytes(value: &str) -> Result<ByteSize, String> {
    let value = value.trim();
    let lower = value.to_ascii_lowercase();
    let unit = lower.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let binary = match unit {
        "k" | "kb" => "KiB",
        "m" | "mb" => "MiB",
        "g" | "gb" => "GiB",
        "t" | "tb" => "TiB",
        other => other,
    };
    let number = &lower[..lower.len() - unit.len()];
    format!("{number}{binary}").parse().map_err(|_| format!("`{value}` is not a size, as in `8192` (MiB) or `8G`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mebibytes_and_times_seconds_unless_they_say_otherwise() {
        for (theirs, ours) in [("8192", "8GiB"), ("8G", "8GiB"), ("512MB", "512MiB"), ("1.5GiB", "1536MiB")] {
            assert_eq!(mebibytes(theirs).map(|size| size.to_string()), Ok(ours.to_owned()));
        }
        assert_eq!(Value::Bytes.translate("1M"), Ok("1MiB".to_owned()));
        assert_eq!(Value::Bytes.translate("131072"), Ok("128KiB".to_owned()));
        assert_eq!(Value::Seconds.translate("60"), Ok("60s".to_owned()));
        assert_eq!(Value::Seconds.translate("10m"), Ok("10m".to_owned()));
        assert_eq!(Value::Blocks.translate("30"), Ok("8".to_owned()));
        for bad in ["", "-5", "lots", "18446744073709551615"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_key_that_an_option_stands_for_exists() {
        for (option, mapping) in OPTIONS {
            if let Mapping::Key(key, _) | Mapping::Switch(key, _) = mapping {
                assert!(crate::Key::find(key).is_some(), "{option} stands for {key}");
            }
        }
    }
}
