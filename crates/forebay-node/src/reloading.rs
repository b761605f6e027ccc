//! Files of secrets that are read again when they change.

use std::fmt::Display;
use std::time::Duration;

use tracing::{error, info};

/// How often a file is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Looks at files until it is aborted: `look` reads them again if they changed, on a thread that may wait for a disk, and says whether
/// what is in them is new. `what` they hold is for the log.
pub(crate) async fn look_after<E: Display + Send + 'static>(
    what: &'static str,
    look: impl Fn() -> Result<bool, E> + Clone + Send + 'static,
) {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(looked) = tokio::task::spawn_blocking(look.clone()).await else { return };
        match looked {
            Ok(is_new) => {
                told = None;
                if is_new {
                    info!("{what} reloaded");
                }
            }
            Err(reason) => {
                let reason = reason.to_string();
                // Said once for each change.
                if told.as_ref() != Some(&reason) {
                    error!(%reason, "{what} cannot be reloaded: the previous ones stay in use");
                }
                told = Some(reason);
            }
        }
    }
}
