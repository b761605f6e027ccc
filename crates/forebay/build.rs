//! Tells `forebay version` what it was built from. Where there is no git checkout or no git, it says less.

use std::path::Path;
use std::process::Command;

fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=FOREBAY_BUILD_TARGET={target}");
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    println!("cargo:rustc-env=FOREBAY_BUILD_RUSTC={}", output_of(&compiler, &["--version"]).unwrap_or_default());

    // The log of HEAD changes with every commit and checkout. A path that is not there would rebuild us every time.
    if let Some(log) = output_of("git", &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = output_of("git", &["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=FOREBAY_BUILD_COMMIT={commit}");
    }
}
