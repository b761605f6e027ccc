//! Which Alluxio property is which key, and how Alluxio writes values.
//!
//! Sizes count by 1024 whatever their unit looks like (`256MB` is 256 MiB), a bare duration is milliseconds, and
//! booleans may be in capitals. Names and defaults are those of Alluxio's public documentation.

use std::collections::BTreeMap;

use forebay_types::ByteSize;

use super::fuse;
use super::properties::Property;
use super::translation::Translation;

/// What a property stands for.
#[derive(Clone, Copy, Debug)]
enum Mapping {
    /// One key, with the value written another way.
    Key { key: &'static str, written: Written },
    /// What happens on a write.
    WriteType,
    /// Options for libfuse, some of which are keys of ours.
    MountOptions,
    /// The class that moves data in Tachyon, which Alluxio was called first: RDMA if its name says so.
    TransportClass,
    /// Nothing that Forebay would need to be told, and why.
    Needless(&'static str),
}

/// How Alluxio writes a value.
#[derive(Clone, Copy, Debug)]
enum Written {
    /// As we do: ports, counts, sizes of one.
    Alike,
    /// One name or address.
    One,
    /// RDMA devices with commas between them.
    Devices,
    /// A count, where negative means zero.
    CountOrOff,
    /// `true`, `FALSE`.
    Boolean,
    /// `256MB`, counting by 1024.
    Size,
    /// As `Size`, where negative means zero.
    SizeOrOff,
    /// `60s`, `1 min`; a bare number is milliseconds.
    Duration,
}

const fn key(key: &'static str, written: Written) -> Mapping {
    Mapping::Key { key, written }
}

const PROPERTIES: &[(&str, Mapping)] = {
    use Written::{Alike, Boolean, CountOrOff, Devices, Duration, One, Size, SizeOrOff};
    &[
        ("alluxio.coordinator.hostname", key("coordinator.hostname", One)),
        ("alluxio.fuse.mount.options", Mapping::MountOptions),
        ("alluxio.fuse.open.read.status.cache.enabled", key("client.open_status_cache.enabled", Boolean)),
        ("alluxio.network.rdma.data.bind.device", key("network.rdma.data.bind.device", Devices)),
        ("alluxio.network.rdma.data.bind.host", key("network.rdma.data.bind.host", One)),
        ("alluxio.network.rdma.data.buffer.pool.initial.size", key("network.rdma.data.buffer_pool.initial_size", Size)),
        ("alluxio.network.rdma.data.buffer.pool.max.size", key("network.rdma.data.buffer_pool.max_size", Size)),
        ("alluxio.network.rdma.data.buffer.pool.prewarm.size", key("network.rdma.data.buffer_pool.prewarm_size", Size)),
        ("alluxio.network.rdma.data.enabled", key("network.rdma.data.enabled", Boolean)),
        ("alluxio.network.rdma.data.hostname", key("network.rdma.data.hostname", One)),
        ("alluxio.network.rdma.data.operation.timeout.ms", key("network.rdma.data.operation_timeout", Duration)),
        ("alluxio.network.rdma.data.port", key("network.rdma.data.port", Alike)),
        ("alluxio.network.rdma.data.trace.enabled", key("network.rdma.data.trace.enabled", Boolean)),
        ("alluxio.network.rdma.data.trace.print.interval.ms", key("network.rdma.data.trace.print_interval", Duration)),
        ("alluxio.network.rdma.metadata.device", key("network.rdma.metadata.device", One)),
        ("alluxio.network.rdma.metadata.enabled", key("network.rdma.metadata.enabled", Boolean)),
        ("alluxio.network.rdma.metadata.gid.index", key("network.rdma.metadata.gid_index", Alike)),
        ("alluxio.network.rdma.metadata.ib.port", key("network.rdma.metadata.ib_port", Alike)),
        ("alluxio.network.rdma.metadata.port", key("network.rdma.metadata.port", Alike)),
        ("alluxio.user.file.writetype.default", Mapping::WriteType),
        ("alluxio.user.network.data.bind.device", key("client.network.data.bind.device", One)),
        (
            "alluxio.user.position.reader.streaming.async.prefetch.file.length.threshold",
            key("client.prefetch.file_length_threshold", SizeOrOff),
        ),
        (
            "alluxio.user.position.reader.streaming.async.prefetch.max.part.number",
            key("client.prefetch.max_part_number", CountOrOff),
        ),
        ("alluxio.worker.data.bind.device", key("worker.data.bind.device", One)),
        ("alluxio.worker.hostname", key("worker.hostname", One)),
        ("alluxio.worker.rest.bind.device", key("worker.rest.bind.device", One)),
        ("alluxio.worker.rpc.bind.device", key("worker.rpc.bind.device", One)),
        ("alluxio.worker.rpc.port", key("worker.rpc.port", Alike)),
        ("alluxio.worker.web.bind.device", key("worker.web.bind.device", One)),
        // Of the study that read over RDMA first, which `forebay bench read` repeats.
        ("tachyon.user.remote.block.reader.class", Mapping::TransportClass),
        (
            "tachyon.user.remote.read.buffer.size.byte",
            Mapping::Needless("a read asks for the blocks that it needs, so there is no buffer of a whole file"),
        ),
        ("tachyon.worker.data.server.class", Mapping::TransportClass),
    ]
};

/// The property that stands for `key`.
pub(super) fn property_of(key: &str) -> Option<&'static str> {
    let stands = |mapping: &Mapping| matches!(mapping, Mapping::Key { key: of, .. } if *of == key);
    PROPERTIES.iter().find(|(_, mapping)| stands(mapping)).map(|(name, _)| *name)
}

/// Every property, and what becomes of it.
pub(super) fn documented() -> Vec<(&'static str, String)> {
    let of = |mapping: Mapping| match mapping {
        Mapping::Key { key, .. } => format!("`{key}`"),
        Mapping::WriteType => "`write.mode`; what caches writes is `through` with a remark".to_owned(),
        Mapping::MountOptions => "`fuse.…`, `posix.…`, as they are called there".to_owned(),
        Mapping::TransportClass => "`network.rdma.data.enabled`, if it is the class for RDMA".to_owned(),
        Mapping::Needless(why) => format!("needless: {why}"),
    };
    PROPERTIES.iter().map(|(name, mapping)| (*name, of(*mapping))).collect()
}

/// Takes over `properties`.
pub(super) fn translate(translation: &mut Translation<'_>, properties: &[Property]) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for property in properties {
        if let Some(earlier) = seen.insert(&property.name, property.line) {
            let name = property.name.escape_debug();
            translation.note(property.line, format!("{name} is also set on line {earlier}: the later one counts"));
        }
        of_property(translation, property);
    }
    if translation.config().network_rdma_data_enabled
        && let Some((line, name)) = translation.source_of("network.rdma.data.enabled")
    {
        translation.set(line, (&name, "true"), "network.rdma.data.fallback", Ok("never".to_owned()));
        let remark = "Alluxio's RDMA never falls back to TCP, so network.rdma.data.fallback is \"never\"; \
                      remove that line for Forebay's default, which does";
        translation.note(line, remark.to_owned());
    }
}

fn of_property(translation: &mut Translation<'_>, Property { line, name, value }: &Property) {
    let Some((known, mapping)) = PROPERTIES.iter().find(|(known, _)| known == name) else {
        return translation.unknown(*line, name, PROPERTIES.iter().map(|(name, _)| *name));
    };
    let value = value.trim();
    if value.is_empty() {
        return translation.note(*line, format!("{known} is empty: left at its default"));
    }
    if value.contains("${") {
        let why = format!("{known} refers to another property: write its value out instead of {value:?}");
        return translation.problem(*line, why);
    }
    let source = (*known, value);
    match mapping {
        Mapping::Key { key, written } => translation.set(*line, source, key, written.translate(value)),
        Mapping::WriteType => of_write_type(translation, *line, source),
        Mapping::MountOptions => of_mount_options(translation, *line, source),
        Mapping::TransportClass => {
            let rdma = value.to_ascii_lowercase().contains("rdma");
            translation.set(*line, source, "network.rdma.data.enabled", Ok(rdma.to_string()));
        }
        Mapping::Needless(why) => translation.note(*line, format!("{known} is needless: {why}")),
    }
}

fn of_write_type(translation: &mut Translation<'_>, line: usize, source: (&'static str, &str)) {
    let (property, value) = source;
    match write_type(value) {
        Ok(difference) => {
            // A mount that is read-only stays so.
            if translation.line_of("write.mode").is_none() {
                translation.set(line, source, "write.mode", Ok("through".to_owned()));
            }
            if let Some(difference) = difference {
                translation.note(line, format!("{property}={value}: {difference}"));
            }
        }
        Err(why) => translation.problem(line, format!("bad value for {property}: {why}")),
    }
}

fn of_mount_options(translation: &mut Translation<'_>, line: usize, source: (&'static str, &str)) {
    for option in source.1.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        match fuse::mount_option(option) {
            Ok((key, value)) => translation.set(line, (source.0, option), key, Ok(value.to_owned())),
            Err(remark) => translation.note(line, format!("mount option {option:?}: {remark}")),
        }
    }
}

impl Written {
    /// The value as our configuration writes it.
    fn translate(self, value: &str) -> Result<String, String> {
        match self {
            Self::Alike => Ok(value.to_owned()),
            Self::One if value.contains([',', ';']) || value.contains(char::is_whitespace) => {
                Err(format!("`{value}` are several, and one is meant"))
            }
            Self::One => Ok(value.to_owned()),
            Self::Devices if value.contains(';') => {
                Err(format!("`{value}`: commas separate devices, as in `mlx5_0:1,mlx5_1:1`"))
            }
            Self::Devices => Ok(value.to_owned()),
            Self::CountOrOff => Ok(if is_negative(value) { "0".to_owned() } else { value.to_owned() }),
            Self::Boolean => Ok(value.to_ascii_lowercase()),
            Self::Size => size(value).map(|size| size.to_string()),
            Self::SizeOrOff if value.starts_with('-') => size(value[1..].trim()).map(|_| "0".to_owned()),
            Self::SizeOrOff => size(value).map(|size| size.to_string()),
            Self::Duration => duration(value),
        }
    }
}

fn is_negative(value: &str) -> bool {
    value.parse::<i64>().is_ok_and(|count| count < 0)
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
fn write_type(value: &str) -> Result<Option<&'static str>, String> {
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
        for (property, mapping) in PROPERTIES {
            if let Mapping::Key { key, .. } = mapping {
                assert!(crate::Key::find(key).is_some(), "{property} stands for {key}");
            }
        }
    }
}
