//! What is started of a [`Setup`]: workers, coordinators and mounts, alone or of a cluster.

use crate::{Bucket, Coordinator, Mount, Setup, Worker};

impl Setup {
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
