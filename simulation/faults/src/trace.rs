//! What the product logs, in the log of the run; and a panic anywhere is a violation.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::kernel;

/// Listens from now on, to what `filter` lets through.
pub(crate) fn listen(filter: &str) {
    let filter = EnvFilter::new(filter);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).without_time().with_target(false);
    // Nothing else listens.
    let _ = lines.with_writer(Lines).try_init();
    std::panic::set_hook(Box::new(|panic| {
        let what = panic.to_string();
        if kernel::is_begun() {
            kernel::violated("no process panics", what);
        } else {
            // In the middle of something of the simulation's own.
            eprintln!("{what}");
            std::process::abort();
        }
    }));
}

struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if kernel::is_begun() {
            kernel::note(String::from_utf8_lossy(&self.0).trim());
        }
    }
}
