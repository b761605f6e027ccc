//! Exit codes, and how an error is shown to the user: one line what failed, one line what to do next.

use std::io::{self, Write as _};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};

pub(crate) use forebay_node::error::{Exit, Fault, UserError};

/// The documentation of the codes, for `--help`.
pub(crate) const CODES: &str = "\
Exit codes:
  0    done
  1    something failed that has no code of its own
  2    the command line or the configuration is wrong
  3    no such file, mount or process
  4    a worker or the origin cannot be reached or did not answer in time; another try may work
  5    permission denied, by the system, by the origin or by a worker
  6    in the way: already mounted, or still in use
  7    a job succeeded, and some of what it loaded was evicted again meanwhile
  8    a job failed: some of it could not be done
  9    a job was stopped
  10   a job has not ended
  130  interrupted";

/// Prints it to standard error. Nothing, when all has been printed.
pub(crate) fn print(user_error: &UserError) {
    if user_error.what.is_empty() {
        return;
    }
    // The reader of standard error may have gone, which is no reason to panic.
    let mut out = std::io::stderr();
    let _ = writeln!(out, "forebay: {}", user_error.what.replace('\n', "\nforebay: "));
    if let Some(next) = &user_error.next {
        let _ = writeln!(out, "  next: {next}");
    }
}

/// The failures of a command that goes on after one: each is told when it happens, and the first one's code is the
/// command's.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    first: Option<Exit>,
}

impl Failures {
    /// Tells a failure.
    ///
    /// # Errors
    /// Gives the error back when it is that our reader went away: then there is nothing to go on for.
    pub(crate) fn tell(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        if is_broken_pipe(&error) {
            return Err(error);
        }
        let user_error = UserError::from(&error);
        print(&user_error);
        self.first.get_or_insert(user_error.exit);
        Ok(())
    }

    /// Whether any was told.
    pub(crate) fn are_any(&self) -> bool {
        self.first.is_some()
    }

    /// How the command ends.
    ///
    /// # Errors
    /// When anything failed; nothing is left to be told.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self.first {
            None => Ok(()),
            Some(exit) => Err(Fault::without_remedy(exit, "").into()),
        }
    }
}

/// Whether the reader of our output went away. That is not a failure, so nothing is said.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    is_broken_pipe_of(&io::stdout(), error)
}

/// A connection to a worker, or a pipe that a file is written to, breaks with the same error: it says nothing of `out`, whose reader
/// is there.
fn is_broken_pipe_of(out: &impl AsFd, error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(broken)) && has_no_reader(out)
}

fn has_no_reader(out: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(out, PollFlags::empty())];
    // poll(2) reports these two whether they are asked for or not.
    rustix::event::poll(&mut asked, Some(&Timespec::default())).is_ok()
        && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_broken_pipe_is_seen_through_its_context_and_only_where_it_is_that_of_our_output() {
        let error = Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing").unwrap_err();
        let (reader, out) = io::pipe().unwrap();
        assert!(!is_broken_pipe_of(&out, &error), "that of something else, whose failure is to be told");
        drop(reader);
        assert!(is_broken_pipe_of(&out, &error));
        assert!(!is_broken_pipe_of(&out, &anyhow::anyhow!("no")));
        let file = tempfile::tempfile().unwrap();
        assert!(!is_broken_pipe_of(&file, &error), "a file has no reader that goes");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_broken_pipe_of(&ours, &error));
        drop(theirs);
        assert!(is_broken_pipe_of(&ours, &error));
    }
}
