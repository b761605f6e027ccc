//! Which of the staged files a command is about.

use std::path::PathBuf;

use forebay_config::Loaded;
use forebay_staging::StagedState;

use super::found::{Entry, Places};
use crate::exit::{Exit, Fault};

/// Which ones a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct Chosen {
    /// An ID, as `forebay fs staged ls` shows it
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// All staged files except those that are open
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Only staged files of this mountpoint or staging directory
    #[arg(long, value_name = "PLACE")]
    of: Option<PathBuf>,
}

impl Chosen {
    /// Those that it means.
    ///
    /// # Errors
    /// When there is none of an id, or it is open.
    pub(super) fn find(&self, loaded: &Loaded) -> anyhow::Result<Vec<Entry>> {
        let mut found = Places::known(loaded, self.of.as_deref())?.entries()?;
        if self.all {
            found.retain(|entry| !matches!(entry.staged.state, StagedState::Open { .. }));
            return Ok(found);
        }
        let mut chosen = Vec::new();
        for id in &self.ids {
            let Some(at) = found.iter().position(|entry| entry.staged.id == *id) else {
                let next = "`forebay fs staged ls` shows what there is";
                return Err(Fault::new(Exit::NotFound, format!("nothing is staged as {id}"), next).into());
            };
            let entry = found.swap_remove(at);
            if let StagedState::Open { pid } = entry.staged.state {
                let what = format!("{id}, {}, is being written: process {pid} has it open", entry.staged.path);
                return Err(Fault::new(Exit::Busy, what, "close the file, or unmount, then try again").into());
            }
            chosen.push(entry);
        }
        Ok(chosen)
    }
}
