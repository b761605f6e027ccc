//! How far something is, for a user who waits at a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `bytes`.
pub(crate) fn bar(bytes: u64) -> ProgressBar {
    const TEMPLATE: &str = "  {bar:40} {bytes:>11} of {total_bytes:11} {bytes_per_sec:>13}  {eta} left";
    let bar = ProgressBar::new(bytes);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style);
    }
    bar
}
