//! What is said of a staged file.

use forebay_staging::StagedState;
use serde_json::{Map, Value};

use super::found::{Entry, nanos};
use crate::output;

/// What is to be said of a state, and why it is so.
pub(super) fn state_of(state: &StagedState) -> (&'static str, String) {
    match state {
        StagedState::Open { pid } => ("open", format!("process {pid} writes it")),
        StagedState::Failed { reason } => ("failed", reason.clone()),
        StagedState::Unfinished => ("unfinished", "its process was ended".to_owned()),
    }
}

/// What every command says of an entry in JSON.
pub(super) fn describe(entry: &Entry) -> Map<String, Value> {
    let staged = &entry.staged;
    let (state, why) = state_of(&staged.state);
    let mut object = Map::new();
    object.insert("id".to_owned(), staged.id.clone().into());
    output::put_name(&mut object, "path", staged.path.as_bytes());
    object.insert("size".to_owned(), staged.size.into());
    object.insert("since".to_owned(), output::time(nanos(staged.since)).into());
    object.insert("state".to_owned(), state.into());
    object.insert("reason".to_owned(), why.into());
    object.insert("of".to_owned(), staged.owner.clone().into());
    object.insert("obstacle".to_owned(), staged.obstacle.clone().into());
    object.insert("file".to_owned(), staged.file.display().to_string().into());
    object
}
