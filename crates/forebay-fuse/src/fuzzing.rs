//! What a fuzzer needs to be the kernel: the file system of a mount, its dispatch and its session, over a socket in place of `/dev/fuse`.
//! Nothing is mounted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use forebay_client::Client;
use forebay_fuse_io::Session;
use forebay_staging::Staging;
use tokio::runtime::Handle;

use crate::dispatcher::Dispatcher;
use crate::filesystem::FileSystem;
use crate::options::{MountOptions, WritingOptions};
use crate::serving::MountShared;
use crate::stale::{StaleNames, stale_names};
use crate::virtual_files::VirtualFiles;

/// Where it is said to be mounted, where nothing can be.
const NOWHERE: &str = "/dev/null/forebay";

/// What is served, until the socket ends.
pub struct Serving {
    session: JoinHandle<io::Result<()>>,
    /// Tells the kernel of stale names.
    teller: JoinHandle<()>,
    shared: Arc<MountShared>,
    stale: StaleNames,
}

/// Answers the first request, which waits on `descriptor`, and serves those that follow.
///
/// # Errors
/// Why it does not begin, in words.
pub fn serve(client: Client, runtime: &Handle, descriptor: OwnedFd, options: &MountOptions) -> Result<Serving, String> {
    let (stale, queue) = stale_names();
    let open =
        |writing: &WritingOptions| Staging::open(writing.staging.clone(), Arc::new(client.clone()), runtime.clone());
    let staging = options.writing.as_ref().map(open).transpose().map_err(|error| error.to_string())?;
    let files = FileSystem::new(client.clone(), staging, stale.clone(), options);
    let shared = MountShared::new(files, VirtualFiles::new(), runtime.clone(), PathBuf::from(NOWHERE), options);
    let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&shared)));
    let session = Session::start(descriptor, dispatcher, &options.session()).map_err(|error| error.to_string())?;
    shared.begin(session.served());
    let notifier = session.notifier();
    let teller = thread::spawn(move || queue.serve(|parent, name| notifier.inval_entry(parent, name)));
    Ok(Serving { session: thread::spawn(move || session.run()), teller, shared, stale })
}

impl Serving {
    /// Waits for the end of the socket, and ends everything else, as a mount does.
    ///
    /// # Errors
    /// When a thread could not go on serving, or panicked.
    pub fn wait(self) -> io::Result<()> {
        let Self { session, teller, shared, stale } = self;
        let panicked = |_| io::Error::other("a thread panicked");
        let outcome = session.join().map_err(panicked)?;
        shared.ended.cancel();
        shared.tasks.close();
        shared.aside.close();
        stale.end();
        shared.runtime.block_on(async {
            shared.tasks.wait().await;
            shared.aside.wait().await;
            shared.files.close_staging().await;
        });
        teller.join().map_err(panicked)?;
        outcome
    }
}
