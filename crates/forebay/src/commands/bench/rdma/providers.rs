//! By which libraries it is measured, and what is told of both.

use std::io::Write as _;

use clap::ValueEnum;
use forebay_perftest::{Report, compare};

use crate::output;

/// A library, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProviderArg {
    /// libibverbs and librdmacm
    Verbs,
    /// OpenUCX
    Ucx,
    /// Verbs, then UCX
    Both,
}

impl ProviderArg {
    /// The libraries that these are, each once.
    pub(super) fn each(said: &[Self]) -> Vec<Self> {
        let mut each = Vec::new();
        for one in said {
            let libraries: &[Self] =
                if *one == Self::Both { &[Self::Verbs, Self::Ucx] } else { std::slice::from_ref(one) };
            for library in libraries {
                if !each.contains(library) {
                    each.push(*library);
                }
            }
        }
        each
    }

    /// Whether verbs are among them.
    pub(super) fn has_verbs(said: &[Self]) -> bool {
        Self::each(said).contains(&Self::Verbs)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Ucx => "ucx",
            Self::Both => "both",
        }
    }
}

/// Tells of the reports what each run has not told: both side by side, or, with `--json`, the document.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn tell(reports: &[(&'static str, Report)], json: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match (reports, json) {
        ([(_, report)], true) => output::json_line(&mut out, &serde_json::to_value(report)?)?,
        (reports, true) => {
            let mut document = serde_json::Map::new();
            for (name, report) in reports {
                document.insert((*name).to_owned(), serde_json::to_value(report)?);
            }
            output::json_line(&mut out, &document.into())?;
        }
        ([_], false) => {}
        (reports, false) => {
            let columns: Vec<_> = reports.iter().map(|(name, report)| (*name, report)).collect();
            writeln!(out, "\n{}", compare::table(&columns))?;
        }
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_is_measured_once_in_the_order_that_was_said() {
        use ProviderArg::{Both, Ucx, Verbs};
        assert_eq!(ProviderArg::each(&[Ucx]), [Ucx]);
        assert_eq!(ProviderArg::each(&[Both]), [Verbs, Ucx]);
        assert_eq!(ProviderArg::each(&[Ucx, Verbs, Ucx]), [Ucx, Verbs]);
        assert_eq!(ProviderArg::each(&[Ucx, Both]), [Ucx, Verbs]);
        assert!(ProviderArg::has_verbs(&[Both]) && !ProviderArg::has_verbs(&[Ucx]));
    }
}
