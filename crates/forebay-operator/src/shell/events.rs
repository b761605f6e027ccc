//! Notices as Events of the API server.
//!
//! They are for people who look, and nothing waits for them: one that is not taken is logged and counted, and what it
//! told of goes on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

use crate::counts::Counts;
use crate::event::{Notice, Weight};
use crate::resources::MANAGER;

/// Where notices go. What repeats itself is counted as long as this is here.
pub(super) struct Events {
    recorder: Recorder,
    counts: Arc<Counts>,
}

impl Events {
    pub(super) fn new(client: Client, counts: Arc<Counts>) -> Self {
        Self { recorder: Recorder::new(client, Reporter::from(MANAGER)), counts }
    }

    /// Tells this of an object, in the namespace that it is in.
    pub(super) async fn tell(&self, about: &ObjectReference, notice: Notice) {
        let event = event(notice);
        if let Err(error) = self.recorder.publish(&event, about).await {
            let (kind, name) = (about.kind.as_deref(), about.name.as_deref());
            warn!(kind, name, reason = event.reason, %error, "an event was not taken");
            self.counts.event_lost();
        }
    }
}

fn event(notice: Notice) -> Event {
    let Notice { weight, reason, action, note } = notice;
    let type_ = match weight {
        Weight::Normal => EventType::Normal,
        Weight::Warning => EventType::Warning,
    };
    Event { type_, reason, note: Some(note).filter(|note| !note.is_empty()), action, secondary: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_an_event_of_its_weight() {
        let notice =
            |weight, note: &str| Notice { weight, reason: "Refused".into(), action: "Mount".into(), note: note.into() };
        let warning = event(notice(Weight::Warning, "spec.path: no"));
        assert_eq!((warning.type_, warning.note.as_deref()), (EventType::Warning, Some("spec.path: no")));
        assert_eq!((warning.reason.as_str(), warning.action.as_str()), ("Refused", "Mount"));
        let normal = event(notice(Weight::Normal, ""));
        assert_eq!((normal.type_, normal.note), (EventType::Normal, None));
    }
}
