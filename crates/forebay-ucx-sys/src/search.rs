//! Where a libucp may lie when none was named.

use std::path::{Path, PathBuf};

/// The library's soname, for the dynamic linker to find.
pub(crate) const SONAME: &str = "libucp.so.0";

/// The folders in which Python packages are installed.
fn package_folders() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let prefixes = [
        variable("VIRTUAL_ENV"),
        variable("CONDA_PREFIX"),
        variable("HOME").map(|home| home.join(".local")),
        Some(PathBuf::from("/usr/local")),
        Some(PathBuf::from("/usr")),
    ];
    let mut folders = Vec::new();
    for prefix in prefixes.into_iter().flatten() {
        for python in entries(&prefix.join("lib"), |name| name.starts_with("python3")) {
            folders.push(python.join("site-packages"));
            folders.push(python.join("dist-packages"));
        }
    }
    folders
}

/// The files and folders in `folder` with a wanted name, the latest name first.
fn entries(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    found.sort_by(|left, right| right.cmp(left));
    found
}

/// The libucp of each wheel in `packages` that brings one. `libucx-cu*` installs it as `libucx/lib/libucp.so.0`; those of
/// NIXL, which has InfiniBand and EFA, as `nixl*.libs/libucp-HASH.so.0.0.0`.
fn in_packages(packages: &Path) -> Vec<PathBuf> {
    let nixl = entries(packages, |name| name.starts_with("nixl") && name.ends_with(".libs"));
    let mut found: Vec<_> = nixl
        .iter()
        .flat_map(|folder| entries(folder, |name| name.starts_with("libucp-") && name.contains(".so")))
        .collect();
    found.push(packages.join("libucx/lib").join(SONAME));
    found.retain(|path| path.is_file());
    found
}

/// Every libucp in a known wheel's folder.
pub(crate) fn in_wheels() -> Vec<PathBuf> {
    package_folders().iter().flat_map(|folder| in_packages(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_both_kinds_of_wheel_are_found_and_others_are_not() {
        let packages = tempfile::tempdir().unwrap();
        for file in ["libucx/lib/libucp.so.0", "nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0", "nixl_cu12.libs/libucs-1.so"]
        {
            let path = packages.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = in_packages(packages.path());
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(packages.path()).unwrap()).collect();
        assert_eq!(names, [Path::new("nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0"), Path::new("libucx/lib/libucp.so.0")]);
        assert!(in_packages(&packages.path().join("nothing")).is_empty());
    }
}
