//! A machine that was recorded: `--record` makes it, `--root` looks at it with the settings that it had.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use forebay_doctor::facts::Configuration;
use forebay_doctor::{Facts, Outside, Report, Root, recording};

use super::configuration::configured;
use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output;

/// This machine, to be copied to `folder` as it is looked at.
///
/// # Errors
/// When the folder is not empty, or cannot be made.
pub(super) fn begin(folder: &Path) -> anyhow::Result<Root> {
    let root = Root::default().recorded_to(folder).map_err(|error| {
        let what = format!("cannot record to {}: {error}", folder.display());
        Fault::new(exit_of(&error), what, "give --record a directory that is empty, or not there")
    })?;
    Ok(root)
}

/// Writes what was no file.
///
/// # Errors
/// When something could not be copied.
pub(super) fn end(root: &Root, folder: &Path, outside: Outside) -> anyhow::Result<()> {
    let at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    recording::write(root, folder, outside, at).map_err(|error| {
        let what = format!("cannot record to {}: {error}", folder.display());
        Fault::new(exit_of(&error), what, "see to the space there, and record to another directory")
    })?;
    let shown = folder.display();
    output::say(&format!(
        "recorded to {shown}: it has names, addresses, GUIDs and settings of this machine, and no keys; look through it, then \
         tar -czf NODE.tar.gz {shown}"
    ));
    Ok(())
}

/// What is to be thought of the machine in `folder`.
///
/// # Errors
/// When it cannot be read.
pub(super) fn report(args: &ConfigArgs, settings: Vec<String>, folder: &Path) -> anyhow::Result<Report> {
    let (root, outside) = recording::open(folder).map_err(|error| {
        let what = format!("cannot look at {}: {error}", folder.display());
        Fault::new(exit_of(&error), what, "give --root a directory that `forebay doctor --record` has made")
    })?;
    let of_then = outside.configuration.settings.iter();
    let of_then: String = of_then.map(|setting| format!("{} = {}\n", setting.key, setting.value)).collect();
    let has_others = args.config.is_some() || !args.settings.is_empty() || !settings.is_empty();
    let (loaded, configuration) = configured(args.load_elsewhere("the recorded settings", of_then, settings))?;
    let is_right = configuration.problems.is_empty();
    let recorded: Configuration = outside.configuration.clone();
    // What was wrong with them then is wrong now.
    let configuration = if has_others || !is_right { configuration } else { recorded };
    Ok(Report::new(Facts::gather(&root, Outside { configuration, ..outside }), &loaded.config))
}

fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied => Exit::Denied,
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidData => Exit::Usage,
        _ => Exit::Failed,
    }
}
