//! Certificates that are replaced while their process runs: the files are looked at again and again, and what they hold is used
//! without a restart.
//!
//! What etcd thinks of a pair is not asked before it is used: etcd may be away. That its parts go together is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::keyspace::Keyspace;
use super::options::EtcdOptions;
use super::rotation::{Rotation, Seen};
use super::tls::{Problem, TlsFiles, TlsPaths};

/// What became of the certificate files of an [`crate::EtcdStore`] that changed.
#[derive(Debug, Default)]
pub struct EtcdCertificates {
    renewals: AtomicU64,
    refused_since: Mutex<Option<Instant>>,
}

impl EtcdCertificates {
    /// How often changed files were taken into use.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// For how long the files have held something that cannot be used; `None` while they do not. What they held before
    /// is used meanwhile.
    #[must_use]
    pub fn refused_for(&self) -> Option<Duration> {
        self.refused_since.lock().map(|since| since.elapsed())
    }
}

/// Looks at the files.
pub(super) struct Renewal {
    pub(super) keyspace: Arc<Keyspace>,
    pub(super) options: EtcdOptions,
    pub(super) paths: TlsPaths,
    /// What is in use now.
    pub(super) used: TlsFiles,
    pub(super) told: Arc<EtcdCertificates>,
}

impl Renewal {
    /// Looks until its future is dropped.
    pub(super) async fn follow(self) {
        let Self { keyspace, options, paths, used, told } = self;
        let mut rotation: Rotation<TlsFiles, Problem> = Rotation::new(used);
        loop {
            sleep(options.reread_every).await;
            let looking = paths.clone();
            // It ends without an answer only with its runtime.
            let Ok(found) = spawn_blocking(move || looking.load()).await else { return };
            match rotation.look(found) {
                Seen::Renewed => {
                    keyspace.members.renew(options.connect_options(rotation.used())).await;
                    told.renewals.fetch_add(1, Ordering::Relaxed);
                    info!(
                        store = keyspace.members.name(),
                        "the certificate files for etcd have changed and are in use"
                    );
                }
                Seen::Refused(problem) => warn!(
                    store = keyspace.members.name(),
                    file = %problem.file.display(),
                    reason = problem.reason,
                    "the certificate files for etcd have changed and cannot be used: what they held before stays in use"
                ),
                Seen::Nothing => {}
            }
            let mut refused_since = told.refused_since.lock();
            *refused_since = rotation.is_refusing().then(|| refused_since.unwrap_or_else(Instant::now));
        }
    }
}
