//! A command that mounts, in the life of its process: what `up` and `mount` have in common.
//!
//! [`begin`] goes to the background when asked to. In the process that stays, [`serve`] starts the node, says that it
//! is ready, and serves until a signal comes or the file system is unmounted.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_node::keeping::KeeperProgram;
use forebay_node::{LETS_GO_WITHIN, MountSummary, NodeBuilder, mountpoint, state};
use tracing::{info, warn};

use crate::output::{self, JsonArg};
use crate::service::Service;
use crate::signals::{self, Signals};
use crate::{daemon, logging};

/// Where a mounting process runs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StayArgs {
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub(crate) foreground: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    /// Set by the process that starts this one in the background
    #[arg(long = "background-child", hide = true)]
    pub(crate) background_child: bool,
}

impl StayArgs {
    /// Who keeps the mount if this process dies, and has it started again where nobody else does: in the foreground, whoever started it.
    /// To be called before the process changes its directory; `log`: where it logs.
    ///
    /// # Errors
    /// When the system does not say which program this is.
    pub(crate) fn keeper(&self, log: Option<&Path>) -> anyhow::Result<KeeperProgram> {
        if self.background_child {
            return KeeperProgram::restarting(log).context("cannot find out how this process was started");
        }
        Ok(KeeperProgram::new(std::env::current_exe().context("cannot find the program's own file")?))
    }
}

/// Whether the mount is taken over from the process that serves it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplaceArgs {
    /// Take over the mount that another process serves here, if there is one: files that are open stay open
    #[arg(long)]
    replace: bool,
    /// How long to wait, with --replace, for files that are being uploaded, or were removed while they are open for writing
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "replace", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

impl ReplaceArgs {
    /// `node`, as they say.
    pub(crate) fn apply(&self, node: NodeBuilder) -> NodeBuilder {
        if self.replace { node.replacing(self.timeout) } else { node }
    }

    /// How much longer than usual it may take until the mount is there.
    fn longer(&self) -> Duration {
        // The process before waits for writers, and then for its own disks and uploads.
        if self.replace { self.timeout.saturating_add(LETS_GO_WITHIN) } else { Duration::ZERO }
    }
}

/// How this process is to go on.
pub(crate) enum Begun {
    /// A process in the background serves the mount: there is nothing left to do here.
    Done,
    /// This process is to serve it, logging to this file or, without one, to standard error.
    Stay {
        /// The log.
        log: Option<PathBuf>,
    },
}

/// Goes to the background, or starts logging in the process that stays.
///
/// # Errors
/// Those of the process in the background, as its own.
pub(crate) fn begin(
    stay: &StayArgs,
    replace: &ReplaceArgs,
    config: &Config,
    at: &Path,
    doing: &str,
) -> anyhow::Result<Begun> {
    if stay.foreground {
        logging::start(config)?;
        return Ok(Begun::Stay { log: config.log_file.clone() });
    }
    let log = match &config.log_file {
        Some(path) => Some(std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?),
        None if logging::is_journal() => None,
        None => Some(state::default_log(&mountpoint::resolve(at)?)?),
    };
    if stay.background_child {
        // Standard error is the log: the parent opened it.
        logging::to_stderr(config, config.log_level)?;
        return Ok(Begun::Stay { log });
    }
    let summary: MountSummary = daemon::start(log.as_deref(), doing, replace.longer())?;
    summary.notes.iter().for_each(|note| output::say(note));
    print(&summary, stay.json.json)?;
    Ok(Begun::Done)
}

fn print(summary: &MountSummary, json: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if json {
        output::json_line(&mut out, &serde_json::to_value(summary)?)?;
    } else {
        writeln!(out, "{} is mounted at {}", summary.source, summary.mountpoint)?;
        writeln!(out, "  process  {} (pid file {})", summary.pid, summary.pid_file.display())?;
        if let Some(io) = &summary.io {
            writeln!(out, "  served   {io}")?;
        }
        if let Some(passthrough) = &summary.passthrough {
            writeln!(out, "  again    {passthrough}")?;
        }
        if let Some(rdma) = &summary.rdma {
            writeln!(out, "  RDMA     {rdma}")?;
        }
        if let Some(log) = &summary.log {
            writeln!(out, "  log      {}", log.display())?;
        }
        if let Some(page) = &summary.page {
            writeln!(out, "  web page {page}")?;
        }
        if let Some(s3) = &summary.s3 {
            writeln!(out, "  S3       {s3}")?;
        }
        writeln!(out, "  unmount  forebay umount {}", summary.mountpoint)?;
    }
    Ok(out.flush()?)
}

/// Starts the node, tells the process that waits for us, and serves until the mount has ended.
///
/// # Errors
/// When it cannot be mounted, or not be unmounted.
pub(crate) async fn serve(node: NodeBuilder, stay: &StayArgs) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let service = Service::of_environment();
    let node = signals::start(&mut signals, node).await?;
    if let Some(summary) = node.mount().filter(|_| stay.background_child) {
        let told = daemon::ready(summary);
        if let Err(error) = told {
            // The error to report is that the waiting process could not be told, and not how the shutdown went.
            let _ = node.shutdown().await;
            return Err(error);
        }
    }
    if let Some(page) = node.addresses().page.filter(|_| !stay.background_child) {
        output::say(&format!("web page {page}"));
    }
    if let Some(address) = node.addresses().s3.filter(|_| !stay.background_child) {
        output::say(&format!("S3 endpoint listening on {address}"));
    }
    let end = async {
        tokio::select! {
            () = node.ended() => {
                match node.successor() {
                    Some(process) => info!(process, "another process serves the mount"),
                    None => info!("unmounted from outside"),
                }
                None
            }
            signal = signals.next() => {
                info!(signal, "unmounting, unless the mount is left to the next process");
                Some(signal)
            }
        }
    };
    // It answers already.
    let signal = service.follow(std::future::ready(()), end).await;
    match node.successor() {
        Some(process) => tokio::task::block_in_place(|| service.goes_on(process)),
        None => service.ends(),
    }
    let at_once = node.at_once();
    let ending = async move {
        // Whoever sits at a terminal wants it gone.
        if signal == Some(signals::TERM) { node.stop().await } else { node.shutdown().await }
    };
    let mut ending = std::pin::pin!(ending);
    loop {
        tokio::select! {
            ended = &mut ending => return Ok(ended?),
            signal = signals.next() => {
                warn!(signal, "ending at once");
                at_once.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_a_mount_over_has_the_time_that_the_process_before_may_take() {
        let timeout = Duration::from_secs(60);
        assert_eq!(ReplaceArgs { replace: false, timeout }.longer(), Duration::ZERO);
        assert_eq!(ReplaceArgs { replace: true, timeout }.longer(), timeout + LETS_GO_WITHIN);
        assert_eq!(ReplaceArgs { replace: true, timeout: Duration::MAX }.longer(), Duration::MAX);
    }
}
