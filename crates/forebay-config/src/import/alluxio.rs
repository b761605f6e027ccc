//! Which Alluxio property is which key, and how Alluxio writes values.
//!
//! Sizes count by 1024 whatever their unit looks like (`256MB` is 256 MiB), a bare duration is milliseconds, and
//! booleans may be in capitals. Names and defaults are those of Alluxio's public documentation.

use forebay_types::ByteSize;

/// What a property stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning {
    /// One key, with the value written another way.
    Key { key: &'static str, written: Written },
    /// What happens on a write.
    WriteType,
    /// Options for libfuse, some of which are keys of ours.
    MountOptions,
}

/// How Alluxio writes a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    /// As we do: names, ports, counts, lists with commas.
    Alike,
    /// `true`, `FALSE`.
    Boolean,
    /// `256MB`, counting by 1024.
    Size,
    /// As `Size`, where negative means zero.
    SizeOrOff,
    /// `60s`, `1 min`; a bare number is milliseconds.
    Duration,
}

const fn key(key: &'static str, written: Written) -> Meaning {
    Meaning::Key { key, written }
}

const PROPERTIES: &[(&str, Meaning)] = {
    use Written::{Alike, Boolean, Duration, Size, SizeOrOff};
    &[
        ("alluxio.coordinator.hostname", key("coordinator.hostname", Alike)),
        ("alluxio.fuse.mount.options", Meaning::MountOptions),
        ("alluxio.fuse.open.read.status.cache.enabled", key("client.open_status_cache.enabled", Boolean)),
        ("alluxio.network.rdma.data.bind.device", key("network.rdma.data.bind.device", Alike)),
        ("alluxio.network.rdma.data.bind.host", key("network.rdma.data.bind.host", Alike)),
        ("alluxio.network.rdma.data.buffer.pool.initial.size", key("network.rdma.data.buffer_pool.initial_size", Size)),
        ("alluxio.network.rdma.data.buffer.pool.max.size", key("network.rdma.data.buffer_pool.max_size", Size)),
        ("alluxio.network.rdma.data.buffer.pool.prewarm.size", key("network.rdma.data.buffer_pool.prewarm_size", Size)),
        ("alluxio.network.rdma.data.enabled", key("network.rdma.data.enabled", Boolean)),
        ("alluxio.network.rdma.data.hostname", key("network.rdma.data.hostname", Alike)),
        ("alluxio.network.rdma.data.operation.timeout.ms", key("network.rdma.data.operation_timeout", Duration)),
        ("alluxio.network.rdma.data.port", key("network.rdma.data.port", Alike)),
        ("alluxio.network.rdma.data.trace.enabled", key("network.rdma.data.trace.enabled", Boolean)),
        ("alluxio.network.rdma.data.trace.print.interval.ms", key("network.rdma.data.trace.print_interval", Duration)),
        ("alluxio.network.rdma.metadata.device", key("network.rdma.metadata.device", Alike)),
        ("alluxio.network.rdma.metadata.enabled", key("network.rdma.metadata.enabled", Boolean)),
        ("alluxio.network.rdma.metadata.gid.index", key("network.rdma.metadata.gid_index", Alike)),
        ("alluxio.network.rdma.metadata.ib.port", key("network.rdma.metadata.ib_port", Alike)),
        ("alluxio.network.rdma.metadata.port", key("network.rdma.metadata.port", Alike)),
        ("alluxio.user.file.writetype.default", Meaning::WriteType),
        ("alluxio.user.network.data.bind.device", key("client.network.data.bind.device", Alike)),
        (
            "alluxio.user.position.reader.streaming.async.prefetch.file.length.threshold",
            key("client.prefetch.file_length_threshold", SizeOrOff),
        ),
        (
            "alluxio.user.position.reader.streaming.async.prefetch.max.part.number",
            key("client.prefetch.max_part_number", Alike),
        ),
        ("alluxio.worker.data.bind.device", key("worker.data.bind.device", Alike)),
        ("alluxio.worker.hostname", key("worker.hostname", Alike)),
        ("alluxio.worker.rest.bind.device", key("worker.rest.bind.device", Alike)),
        ("alluxio.worker.rpc.bind.device", key("worker.rpc.bind.device", Alike)),
        ("alluxio.worker.rpc.port", key("worker.rpc.port", Alike)),
        ("alluxio.worker.web.bind.device", key("worker.web.bind.device", Alike)),
    ]
};

/// The property called `name`, and what it means.
pub(crate) fn find(name: &str) -> Option<(&'static str, Meaning)> {
    PROPERTIES.iter().find(|(known, _)| *known == name).copied()
}

/// The names of all known properties.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROPERTIES.iter().map(|(name, _)| *name)
}

impl Written {
    /// The value as our configuration writes it.
    pub(crate) fn translate(self, value: &str) -> Result<String, String> {
        match self {
            Self::Alike => Ok(value.to_owned()),
            Self::Boolean => Ok(value.to_ascii_lowercase()),
            Self::Size => size(value).map(|size| size.to_string()),
            Self::SizeOrOff if value.starts_with('-') => size(&value[1..]).map(|_| "0".to_owned()),
            Self::SizeOrOff => size(value).map(|size| size.to_string()),
            Self::Duration => duration(value),
        }
    }
}

fn size(value: &str) -> Result<ByteSize, String> {
    let lower = value.to_ascii_lowercase();
    // `256mb` to our 1024-based `256m`; `256mib` and `256b` are fine as they are.
    let unit_is_decimal_to_us = ["kb", "mb", "gb", "tb", "pb"].iter().any(|unit| lower.ends_with(unit));
    let ours = if unit_is_decimal_to_us { lower.strip_suffix('b').unwrap_or(&lower) } else { &lower };
    ours.parse().map_err(|_| format!("`{value}` is not a size, as in `256MB`"))
}

fn duration(value: &str) -> Result<String, String> {
    let digits_end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(digits_end);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "ms" | "millisecond" | "milliseconds" => "ms",
        "s" | "sec" | "second" | "seconds" => "s",
        "m" | "min" | "minute" | "minutes" => "m",
        "h" | "hr" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return Err(format!("`{value}` is not a duration, as in `60s`; a bare number is milliseconds")),
    };
    Ok(format!("{number}{unit}"))
}

/// How writing through differs from a write type of Alluxio; `None` when it does not.
pub(crate) fn write_type(value: &str) -> Result<Option<&'static str>, String> {
    match value.to_ascii_uppercase().as_str() {
        "THROUGH" => Ok(None),
        "CACHE_THROUGH" => Ok(Some("forebay writes through to the origin, and caches data when it is first read")),
        "MUST_CACHE" | "TRY_CACHE" | "ASYNC_THROUGH" => {
            Ok(Some("forebay writes through to the origin: slower to write, and nothing is lost with a worker"))
        }
        "NONE" => Ok(Some("forebay writes through to the origin; write.mode = \"none\" would take no writes at all")),
        _ => Err(format!("`{value}` is not a write type, as in `THROUGH`")),
    }
}

/// The key and value that an option for libfuse stands for, or a remark on one that has none.
pub(crate) fn mount_option(option: &str) -> Result<(&'static str, &str), &'static str> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    match name.trim() {
        "max_background" => Ok(("fuse.max_background", value)),
        "max_read" => Ok(("fuse.max_read", value)),
        "allow_other" => Ok(("fuse.allow_other", "true")),
        "ro" => Ok(("write.mode", "none")),
        "uid" => Ok(("posix.uid", value)),
        "gid" => Ok(("posix.gid", value)),
        // libfuse starts threads on demand and ends those that idle beyond this number.
        "max_idle_threads" => Err("needless, forebay's FUSE threads never end; fuse.threads sets their number"),
        "kernel_cache" | "auto_cache" => {
            Err("needless, the page cache is kept as long as the file's version is the same")
        }
        "direct_io" => Err("needless, open with O_DIRECT to pass the page cache by"),
        "umask" => Err("see posix.file_mode and posix.dir_mode"),
        "attr_timeout" | "entry_timeout" => Err("see metadata.ttl, which bounds how old attributes may be"),
        _ => Err("has no counterpart"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_by_1024_whatever_their_unit() {
        for (theirs, ours) in
            [("256MB", "256MiB"), ("8GB", "8GiB"), ("4m", "4MiB"), ("512", "512B"), ("1.5 GB", "1536MiB")]
        {
            assert_eq!(Written::Size.translate(theirs), Ok(ours.to_owned()));
        }
        assert!(Written::Size.translate("-1").is_err());
        assert_eq!(Written::SizeOrOff.translate("-1"), Ok("0".to_owned()));
    }

    #[test]
    fn a_bare_duration_is_milliseconds() {
        for (theirs, ours) in [("20000", "20000ms"), ("20s", "20s"), ("1 min", "1m"), ("2Hours", "2h")] {
            assert_eq!(Written::Duration.translate(theirs), Ok(ours.to_owned()));
        }
        assert!(Written::Duration.translate("-1").is_err());
        assert!(Written::Duration.translate("1 fortnight").is_err());
    }

    #[test]
    fn every_key_that_a_property_stands_for_exists() {
        for (property, meaning) in PROPERTIES {
            if let Meaning::Key { key, .. } = meaning {
                assert!(crate::Key::find(key).is_some(), "{property} stands for {key}");
            }
        }
    }
}
