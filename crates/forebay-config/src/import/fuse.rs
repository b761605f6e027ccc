//! Options for libfuse, which mounts of other systems pass on.

/// The key and value that an option stands for, or a remark on one that has none.
pub(super) fn mount_option(option: &str) -> Result<(&'static str, &str), &'static str> {
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
