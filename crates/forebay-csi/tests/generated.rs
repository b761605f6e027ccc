//! `src/generated/` is what is made of `proto/`. FOREBAY_BLESS=1 writes it anew.
//!
//! Making it needs `protoc`, as etcd-client's build does; building this crate does not.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::skipped;

/// Each file of `proto/`, and the file that is made of it.
const MADE: [(&str, &str); 2] = [("csi.proto", "csi.v1.rs"), ("pluginregistration.proto", "pluginregistration.rs")];
/// Messages with secrets, which say themselves how they are shown.
const SECRET: [&str; 3] =
    [".csi.v1.NodeStageVolumeRequest", ".csi.v1.NodePublishVolumeRequest", ".csi.v1.NodeExpandVolumeRequest"];

fn crate_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The tokens of a file: how its lines are broken has no part in it.
fn tokens(text: &str) -> String {
    let mut text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    for end in [")", "]", "}", ">"] {
        text = text.replace(&format!(",{end}"), end);
    }
    text
}

#[test]
fn what_is_generated_is_made_of_the_protocols() {
    let protoc = std::env::var_os("PROTOC").unwrap_or_else(|| "protoc".into());
    if Command::new(&protoc).arg("--version").output().is_err() {
        return skipped("protoc is not installed");
    }
    let (proto, made) = (crate_directory().join("proto"), tempfile::tempdir().unwrap());
    tonic_prost_build::configure()
        .skip_debug(SECRET)
        .emit_rerun_if_changed(false)
        .out_dir(made.path())
        .compile_protos(&MADE.map(|(source, _)| proto.join(source)), std::slice::from_ref(&proto))
        .unwrap();
    for (_, file) in MADE {
        let kept = crate_directory().join("src/generated").join(file);
        let new = std::fs::read_to_string(made.path().join(file)).unwrap();
        if std::env::var_os("FOREBAY_BLESS").is_some() {
            std::fs::write(&kept, &new).unwrap();
        }
        let old = std::fs::read_to_string(&kept).unwrap();
        assert!(tokens(&old) == tokens(&new), "{file} is not what proto/ says: FOREBAY_BLESS=1 makes it so");
    }
}
