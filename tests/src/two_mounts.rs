//! A worker with two mounts of it: what is written through one is read through the other.

use crate::{Bucket, Mount, Setup, Worker};

/// The mounts, their worker and its bucket.
pub struct TwoMounts {
    /// One of the mounts.
    pub near: Mount,
    /// The other one.
    pub far: Mount,
    // They are unmounted before it ends, and it ends before the bucket does.
    _worker: Worker,
    /// What all of them show.
    pub bucket: Bucket,
}

impl TwoMounts {
    /// Starts all of them with these settings.
    #[must_use]
    pub fn new(settings: &[&str]) -> Self {
        let bucket = Bucket::new();
        let worker = Setup::of(&bucket).options(settings).worker(&bucket);
        let near = Setup::of_user().options(settings).mount([&worker]);
        let far = Setup::of_user().options(settings).mount([&worker]);
        Self { near, far, _worker: worker, bucket }
    }
}
