//! Why a runner did not do what it was asked.

use forebay_state::StateError;

use crate::jobs::SpecProblem;

/// Why a runner did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The options do not go together.
    #[error(transparent)]
    Spec(#[from] SpecProblem),
    /// No such job.
    #[error("there is no job `{0}`")]
    NoJob(String),
    /// Too many wait.
    #[error("{0} jobs wait for their turn already")]
    TooMany(usize),
    /// Another coordinator leads.
    #[error("another coordinator leads by now")]
    Deposed,
    /// A job was taken, and the state store did not say whether it has it. It is listed, and runs when it does.
    #[error("the job `{id}` was taken, but it is not known to be written down ({error})")]
    Unclear {
        /// The job.
        id: String,
        /// What the state store said.
        #[source]
        error: StateError,
    },
    /// The state store did not do it.
    #[error(transparent)]
    State(#[from] StateError),
}
