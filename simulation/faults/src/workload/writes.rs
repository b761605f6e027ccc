//! What users change.

use std::time::Duration;

use forebay_types::FailureKind;
use rand::Rng;

use super::dataset::{Place, new_object};
use super::judge::Operation;
use super::state::UnderWay;
use crate::{content, kernel, origin};

impl Operation {
    /// Changes a file, and looks at it at once and a few times more, while faults end and others begin: the worker that
    /// is asked then may have been away meanwhile.
    pub(super) async fn change_and_look(&self, place: &Place, change: UnderWay) {
        if kernel::once_in(4) {
            self.remove_at(place).await
        } else {
            self.put_at(place).await
        }
        drop(change);
        for _ in 0..kernel::chance(|random| random.random_range(2..6)) {
            let look = UnderWay::begin();
            self.stat(place, false).await;
            drop(look);
            tokio::time::sleep(kernel::between(Duration::from_millis(1), Duration::from_secs(15))).await;
        }
    }

    pub(super) async fn put(&self) {
        self.put_at(&self.dataset.any()).await;
    }

    async fn put_at(&self, place: &Place) {
        let object = new_object(&self.dataset);
        let asked = self.asked();
        let answer = self.client.put(&place.shown, content::whole(object.number, object.size).into()).await;
        self.on_time(&asked, self.dataset.settings.change_timeout + Duration::from_secs(5), || {
            format!("put of {}", place.shown)
        });
        match answer {
            Ok(attr) => {
                if attr.version().and_then(origin::object_of) != Some(object) {
                    kernel::violated("acknowledged is durable", format!("{} is said to be {attr:?}", place.shown));
                }
                self.acknowledged(place, Some(object), &asked);
            }
            Err(failure) => self.failed(&asked, place.origin, &failure, || format!("put of {}", place.shown)),
        }
    }

    pub(super) async fn remove(&self) {
        let place = self.dataset.any();
        self.remove_at(&place).await;
    }

    async fn remove_at(&self, place: &Place) {
        let asked = self.asked();
        let answer = self.client.remove(&place.shown).await;
        self.on_time(&asked, self.dataset.settings.change_timeout + Duration::from_secs(5), || {
            format!("removal of {}", place.shown)
        });
        match answer {
            Ok(()) => self.acknowledged(place, None, &asked),
            Err(failure) => self.failed(&asked, place.origin, &failure, || format!("removal of {}", place.shown)),
        }
    }

    /// As `rename(2)` does it: a copy, and the old name goes.
    pub(super) async fn rename(&self) {
        let (from, to) = (self.dataset.any(), self.dataset.any());
        if from.origin != to.origin || from.below == to.below {
            return;
        }
        let asked = self.asked();
        match self.client.copy(&from.shown, &to.shown).await {
            Ok(attr) => {
                let object = attr.version().and_then(origin::object_of);
                self.acknowledged(&to, object, &asked);
                self.remove_at(&from).await;
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => {}
            Err(failure) => self.failed(&asked, to.origin, &failure, || format!("copy to {}", to.shown)),
        }
    }

    /// A file in parts, which come in any order.
    pub(super) async fn upload(&self) {
        let place = self.dataset.any();
        let mut object = new_object(&self.dataset);
        object.size = object.size.max(16);
        object.number = object.number.max(1);
        let bytes = bytes::Bytes::from(content::whole(object.number, object.size));
        let asked = self.asked();
        let what = || format!("upload of {}", place.shown);
        let upload = match self.client.begin_upload(&place.shown).await {
            Ok(upload) => upload,
            Err(failure) => return self.failed(&asked, place.origin, &failure, what),
        };
        let parts = kernel::chance(|random| random.random_range(1..5));
        let size = (bytes.len() / parts).max(1);
        let sent = bytes.chunks(size).zip(1..).map(|(part, number)| {
            let part = bytes.slice_ref(part);
            self.client.upload_part(&place.shown, &upload, number, part)
        });
        let tags = match futures::future::try_join_all(sent).await {
            Ok(tags) => tags,
            Err(failure) => {
                self.failed(&asked, place.origin, &failure, what);
                let _ = self.client.abort_upload(&place.shown, &upload).await;
                return;
            }
        };
        let asked = self.asked();
        match self.client.complete_upload(&place.shown, &upload, object.size, &tags).await {
            Ok(_) => self.acknowledged(&place, Some(object), &asked),
            Err(failure) => self.failed(&asked, place.origin, &failure, what),
        }
    }
}
