//! One call at a time for each volume. Calls for different volumes do not wait for each other.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_locks::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::error::Refusal;
use crate::fields::VolumeId;

/// How long a call waits for another one of its volume: a bind is done by then, and for a mount the kubelet comes
/// again.
const WAIT: Duration = Duration::from_secs(10);

type Turn = tokio::sync::Mutex<()>;

/// The volumes for which a call is under way.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    turns: Mutex<HashMap<VolumeId, Weak<Turn>>>,
}

impl Pending {
    /// The turn of a call. Whoever has it is the only one for this volume.
    ///
    /// # Errors
    /// When another call takes long.
    pub(crate) async fn turn(&self, volume: &VolumeId) -> Result<OwnedMutexGuard<()>, Refusal> {
        let turn = self.of(volume);
        tokio::time::timeout(WAIT, turn.lock_owned())
            .await
            .map_err(|_| Refusal::aborted("another call for this volume is under way: try again"))
    }

    fn of(&self, volume: &VolumeId) -> Arc<Turn> {
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.get(volume).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::default());
        turns.insert(volume.clone(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[tokio::test(start_paused = true)]
    async fn calls_for_one_volume_wait_for_each_other_and_not_for_ever() {
        let pending = Pending::default();
        let [one, other] = ["one", "other"].map(|id| VolumeId::of(id).unwrap());
        let turn = pending.turn(&one).await.unwrap();
        assert!(pending.turn(&other).await.is_ok());
        assert_eq!(pending.turn(&one).await.unwrap_err().code(), Code::Aborted);
        let (waited, ()) = tokio::join!(pending.turn(&one), async { drop(turn) });
        assert!(waited.is_ok());
    }

    #[tokio::test]
    async fn volumes_that_are_gone_are_forgotten() {
        let pending = Pending::default();
        for number in 0..100 {
            drop(pending.turn(&VolumeId::of(&format!("volume {number}")).unwrap()).await.unwrap());
        }
        assert!(pending.turns.lock().len() <= 2);
    }
}
