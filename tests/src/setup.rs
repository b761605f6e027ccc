//! How a worker or a mount is to be started.

use std::path::Path;

use crate::{Bucket, Coordinator, Mount, Worker};

/// Options, and the environment that they are started in.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) arguments: Vec<String>,
}

impl Setup {
    /// For a bucket: with its endpoint and keys, and 128 MiB of memory for blocks.
    #[must_use]
    pub fn of(bucket: &Bucket) -> Self {
        Self { environment: bucket.environment(), arguments: Vec::new() }.memory("128MiB")
    }

    /// Without any origin: for a mount of workers, which needs no credentials.
    #[must_use]
    pub fn without_origin() -> Self {
        Self::default().option("client.memory.size=64MiB")
    }

    /// Adds a flag with a value.
    #[must_use]
    pub fn argument(mut self, flag: &str, value: &str) -> Self {
        self.arguments.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a flag that has none.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.arguments.push(flag.to_owned());
        self
    }

    /// Adds a setting, `key=value`.
    #[must_use]
    pub fn option(self, setting: &str) -> Self {
        self.argument("-o", setting)
    }

    /// Adds settings.
    #[must_use]
    pub fn options(self, settings: &[&str]) -> Self {
        settings.iter().fold(self, |setup, setting| setup.option(setting))
    }

    /// Sets the memory for blocks.
    #[must_use]
    pub fn memory(self, size: &str) -> Self {
        self.option(&format!("worker.memory.size={size}"))
    }

    /// Gives it a disk: a directory, and how much it may hold.
    #[must_use]
    pub fn disk(self, directory: &Path, size: &str) -> Self {
        self.option(&format!("worker.disks={}:{size}", directory.display()))
    }

    /// Changes a variable of the environment.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.retain(|(known, _)| *known != name);
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Starts a worker that caches the whole bucket.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn worker(self, bucket: &Bucket) -> Worker {
        self.worker_meeting(bucket, |_| ())
    }

    /// The same; `watch` sees the worker's log while it starts.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn worker_meeting(self, bucket: &Bucket, watch: impl FnMut(&str)) -> Worker {
        let mounts = format!("mounts=/={}", bucket.url());
        Worker::start(self.options(&[&mounts, "worker.rpc.bind.host=127.0.0.1"]), watch)
    }

    /// Starts a worker of a cluster.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn member(self, name: &str) -> Worker {
        let name = format!("worker.name={name}");
        Worker::start(self.options(&[&name, "worker.rpc.bind.host=127.0.0.1", "worker.hostname=127.0.0.1"]), |_| ())
    }

    /// Starts a coordinator of a cluster.
    ///
    /// # Panics
    /// When it does not listen in time.
    #[must_use]
    #[track_caller]
    pub fn coordinator(self) -> Coordinator {
        Coordinator::start(&self)
    }

    /// Mounts what the workers of a cluster serve.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn mount_cluster(self) -> Mount {
        self.prepare_mount_cluster().started()
    }

    /// A mount of a cluster that is not started yet.
    #[must_use]
    pub fn prepare_mount_cluster(self) -> Mount {
        Mount::new(self, vec!["mount".to_owned()])
    }

    /// Mounts the bucket with `forebay up`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn up(self, bucket: &Bucket) -> Mount {
        self.up_url(&bucket.url())
    }

    /// Mounts an origin with `forebay up`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn up_url(self, url: &str) -> Mount {
        Mount::new(self, vec!["up".to_owned(), url.to_owned()]).started()
    }

    /// Mounts what workers serve with `forebay mount`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn mount<'a>(self, workers: impl IntoIterator<Item = &'a Worker>) -> Mount {
        let addresses: Vec<String> = workers.into_iter().map(|worker| worker.address().to_string()).collect();
        Mount::new(self.mounting(&addresses.join(",")), vec!["mount".to_owned()]).started()
    }

    fn mounting(mut self, workers: &str) -> Self {
        self.arguments.extend(["--workers".to_owned(), workers.to_owned()]);
        self
    }

    /// A mount by `forebay up` that is not started yet: for tests of how that fails.
    #[must_use]
    pub fn prepare_up(self, url: &str) -> Mount {
        Mount::new(self, vec!["up".to_owned(), url.to_owned()])
    }

    /// A mount by `forebay mount` that is not started yet.
    #[must_use]
    pub fn prepare_mount(self, workers: &str) -> Mount {
        Mount::new(self.mounting(workers), vec!["mount".to_owned()])
    }
}
