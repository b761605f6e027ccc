//! `forebay csi`: the CSI driver of a node, in the foreground, as a DaemonSet runs it (`forebay-csi`).

use std::path::PathBuf;

use forebay_csi::{InlinePolicy, Probed, Settings};
use forebay_types::ByteSize;
use tracing::{info, warn};

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::signals::Signals;
use crate::{logging, output, runtime};

/// The driver's name, where none is given.
const DRIVER: &str = "csi.forebay.io";

/// Serve the kubelet: pods' volumes as mounts of this node
///
/// A PersistentVolume with the driver csi.forebay.io has a source and options, as mount(8) has, in its volumeAttributes.
/// Each is mounted once on a node, by a process of its own. Mounts stay when this command ends, and the next one finds
/// them. The command needs root, /dev/fuse, and the kubelet's directory with mounts that the host sees. The
/// configuration of $FOREBAY_CONFIG, or of /etc/forebay/forebay.toml, is also that of the mounts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay csi --node-name node1
  forebay csi --node-name node1 --inline s3://team-a/ --inline-memory 256MiB
  forebay csi --probe")]
pub(crate) struct Args {
    /// The kubelet's directory: paths outside of it are refused
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// The name of the driver, as of its CSIDriver object
    #[arg(long, value_name = "NAME", default_value = DRIVER)]
    driver_name: String,
    /// The name of this node in Kubernetes [default: the name of the host]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Where to listen [default: plugins/NAME/csi.sock in the kubelet's directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Do not register with the kubelet
    #[arg(long)]
    no_registration: bool,
    /// What volumes may show that are written in a pod: URLs that begin so; may be repeated [default: nothing]
    #[arg(long, value_name = "URL")]
    inline: Vec<String>,
    /// Memory for the blocks of each of those [default: worker.memory.size, 1GiB]
    #[arg(long, value_name = "SIZE", requires = "inline")]
    inline_memory: Option<ByteSize>,
    /// Where the mounts log [default: plugins/NAME/logs in the kubelet's directory]
    #[arg(long, value_name = "DIRECTORY")]
    log_dir: Option<PathBuf>,
    /// Where `forebay keeper --host` listens, which has mounts while their processes are started again; requires Linux 6.9
    #[arg(long, value_name = "PATH")]
    keepers: Option<PathBuf>,
    /// Ask the driver that listens at the socket whether it is ready, and end
    #[arg(long)]
    probe: bool,
    /// With --probe: a driver that listens there in another PID namespace, as in the pod before this one, is not ready
    #[arg(long, requires = "probe")]
    own: bool,
}

impl Args {
    /// The directory that the kubelet has for this driver.
    fn own_directory(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(&self.driver_name)
    }

    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.own_directory().join("csi.sock"))
    }

    fn settings(self) -> anyhow::Result<Settings> {
        let name_of_host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let memory = self.inline_memory.map(|size| size.to_string());
        let inline = InlinePolicy::new(self.inline.clone(), memory).map_err(|error| {
            Fault::new(Exit::Usage, format!("--inline: {error}"), "`forebay csi --help` has an example")
        })?;
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let keepers = self.keepers.clone().filter(|_| resends(&release));
        if self.keepers.is_some() && keepers.is_none() {
            warn!(release, "mounts end with their processes: to keep them requires Linux 6.9");
        }
        Ok(Settings {
            keepers,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node_name.clone().unwrap_or_else(name_of_host),
            socket: self.socket(),
            registry: (!self.no_registration).then(|| self.kubelet_dir.join("plugins_registry")),
            inline,
            program: std::env::current_exe()?,
            logs: self.log_dir.clone().unwrap_or_else(|| self.own_directory().join("logs")),
            driver: self.driver_name,
            kubelet: self.kubelet_dir,
        })
    }
}

/// Whether a kernel of this release hands out again what a process that died was asked: since 6.9.
fn resends(release: &str) -> bool {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

/// Runs it.
///
/// # Errors
/// When it cannot listen, or with `--probe`, when the driver is not ready.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.probe {
        return runtime::block_on(probe(args.socket(), args.own));
    }
    // Its mounts read it by themselves, so what is given here must be what they find.
    let loaded = ConfigArgs::default().load([])?;
    logging::start(&loaded.config)?;
    let settings = args.settings()?;
    runtime::block_on(serve(settings))
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let end = async {
        let signal = signals.next().await;
        info!(signal, "ending; mounts stay");
    };
    Ok(forebay_csi::serve(settings, end).await?)
}

async fn probe(socket: PathBuf, own: bool) -> anyhow::Result<()> {
    match forebay_csi::probe(&socket, own).await {
        Ok(Probed::Ready) => {
            output::say("ready");
            Ok(())
        }
        Ok(Probed::NoDevice) => {
            let next = "load the kernel module with `modprobe fuse`, and give the container /dev/fuse";
            Err(Fault::new(Exit::Unavailable, "the driver has no /dev/fuse", next).into())
        }
        Err(status) => {
            let what = format!("the driver at {} does not answer: {}", socket.display(), status.message());
            Err(Fault::new(Exit::Unavailable, what, "see its log").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn parse(flags: &[&str]) -> Args {
        let words = ["forebay", "csi"].into_iter().chain(flags.iter().copied());
        match crate::cli::Cli::try_parse_from(words).unwrap().command {
            crate::cli::Command::Csi(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_driver_lies_where_the_kubelet_has_drivers() {
        let settings = parse(&["--node-name", "node1", "--kubelet-dir", "/data/kubelet"]).settings().unwrap();
        assert_eq!(settings.socket, PathBuf::from("/data/kubelet/plugins/csi.forebay.io/csi.sock"));
        assert_eq!(settings.logs, PathBuf::from("/data/kubelet/plugins/csi.forebay.io/logs"));
        assert_eq!(settings.registry, Some(PathBuf::from("/data/kubelet/plugins_registry")));
        assert_eq!((settings.node.as_str(), settings.inline), ("node1", InlinePolicy::default()));
        assert_eq!(parse(&["--no-registration"]).settings().unwrap().registry, None);
    }

    #[test]
    fn mounts_are_kept_where_the_kernel_asks_again() {
        for (release, keeps) in [
            ("6.9.0", true),
            ("6.12.1-amd64", true),
            ("7.0-rc1", true),
            ("6.8.0-1-generic", false),
            ("5.15.0", false),
            ("", false),
        ] {
            assert_eq!(resends(release), keeps, "{release}");
        }
    }

    #[test]
    fn what_pods_may_have_is_a_list_of_urls() {
        let settings =
            parse(&["--inline", "s3://", "--inline", "gs://b", "--inline-memory", "64MiB"]).settings().unwrap();
        let sources = vec!["s3://".to_owned(), "gs://b".to_owned()];
        assert_eq!(settings.inline, InlinePolicy::new(sources, Some("64MiB".to_owned())).unwrap());
        let error = parse(&["--inline", "/data"]).settings().unwrap_err().to_string();
        assert!(error.contains("--inline") && error.contains("/data"), "{error}");
    }
}
