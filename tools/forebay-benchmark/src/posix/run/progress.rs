//! How a run shows its progress, and asks.

use super::stop::Stop;

/// Is told how far a run is. None of it may fail: the terminal may be gone.
pub trait Progress {
    /// Something to know.
    fn say(&mut self, text: &str);

    /// Whether the user who waits agrees; without a user the answer is no. Ends when it is asked to stop.
    fn confirm(&mut self, question: &str, stop: &Stop) -> bool;

    /// `total` steps of this kind begin: `writing data`, `measuring`.
    fn begin(&mut self, kind: &str, total: usize);

    /// What is being done now.
    fn now(&mut self, what: &str);

    /// A step ended, with this.
    fn done(&mut self, step: &str, result: &str);

    /// So many steps are not needed.
    fn skip(&mut self, steps: usize);

    /// The steps that began have ended, or never will.
    fn end(&mut self);
}
