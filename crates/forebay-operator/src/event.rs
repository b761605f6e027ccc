//! What is told of an object beside its conditions, as Events, which `kubectl describe` shows and which go by
//! themselves after an hour: plain functions of the conditions before and after, and of what became of a worker.
//!
//! One notice for each change, and none for a round that found what the last one had found. What an API server tells of
//! the same object, action and reason within some minutes it counts as one Event, with the note of the first.

use std::time::Duration;

use crate::condition::Condition;
use crate::leaving::{News, WorkerPod};
use crate::load::{COMPLETE, FAILED};

/// Bytes of a note that an API server takes.
const MAX_NOTE: usize = 1024;

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// All is as it should be.
    Normal,
    /// Something is not as the object has it.
    Warning,
}

/// What is to be told of an object, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether somebody should look.
    pub weight: Weight,
    /// What happened, in a word for programs.
    pub reason: String,
    /// What was being done, in a word for programs.
    pub action: String,
    /// What happened, for people: no longer than an API server takes.
    pub note: String,
}

/// What is new of an object whose conditions were `earlier` and are `now`. `is_another`: they are about another action
/// than before, and what is so is new even if the same was so of that one.
#[must_use]
pub fn of_conditions(earlier: &[Condition], now: &[Condition], action: &str, is_another: bool) -> Vec<Notice> {
    let news = now.iter().filter(|condition| is_another || is_news(earlier, condition));
    let notice = |condition: &Condition| {
        let (reason, action) = (condition.reason.clone(), action.to_owned());
        Some(Notice { weight: weight(condition)?, reason, action, note: cut(&condition.message) })
    };
    news.filter_map(notice).collect()
}

/// Whether one of these conditions says that the object is not as it should be.
#[must_use]
pub fn is_amiss(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| weight(condition) == Some(Weight::Warning))
}

/// What is told of the pod of a worker that leaves its node, or stays. `within`: for how long such a pod is held.
#[must_use]
pub fn of_worker(news: News, pod: &WorkerPod, within: Duration) -> Notice {
    let WorkerPod { worker, node, .. } = pod;
    let (weight, reason, note) = match news {
        News::Asked => {
            let note = format!("the node {node} is cordoned: its worker {worker} is to hand over what it holds");
            (Weight::Normal, "WorkerAskedToLeave", note)
        }
        News::HandedOver => {
            let note = format!("the worker {worker} has handed over what it held: its pod may be evicted");
            (Weight::Normal, "WorkerHandedOver", note)
        }
        News::TimedOut => {
            let note = format!(
                "the worker {worker} has not handed over everything within {}: its pod may be evicted, and what it \
                 still holds comes from the origin again",
                humantime::format_duration(within)
            );
            (Weight::Warning, "WorkerDrainTimedOut", note)
        }
        News::Stays => (Weight::Normal, "WorkerStays", format!("the worker {worker} stays: its node takes pods")),
    };
    Notice { weight, reason: reason.to_owned(), action: "Drain".to_owned(), note: cut(&note) }
}

/// How a condition is told; `None` if it says only that something has not happened yet.
fn weight(condition: &Condition) -> Option<Weight> {
    match (&*condition.kind, condition.status == "True") {
        (COMPLETE | FAILED, false) => None,
        (FAILED, true) => Some(Weight::Warning),
        (_, true) => Some(Weight::Normal),
        // Its turn comes.
        (_, false) if condition.reason == "Waiting" => Some(Weight::Normal),
        (_, false) => Some(Weight::Warning),
    }
}

/// Whether it says something else than before, or the same of an object that somebody changed.
fn is_news(earlier: &[Condition], now: &Condition) -> bool {
    earlier.iter().find(|earlier| earlier.kind == now.kind).is_none_or(|earlier| said(earlier) != said(now))
}

fn said(condition: &Condition) -> (&str, &str, Option<i64>) {
    (&condition.status, &condition.reason, condition.observed_generation)
}

fn cut(note: &str) -> String {
    if note.len() <= MAX_NOTE {
        return note.to_owned();
    }
    let end = note.floor_char_boundary(MAX_NOTE - '…'.len_utf8());
    format!("{}…", &note[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ACCEPTED;

    fn condition(kind: &str, holds: bool, reason: &str) -> Condition {
        let status = if holds { "True" } else { "False" };
        Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: format!("{reason}: why"),
            observed_generation: Some(1),
            ..Condition::default()
        }
    }

    fn told(earlier: &[Condition], now: &[Condition], is_another: bool) -> Vec<(Weight, String)> {
        let notices = of_conditions(earlier, now, "Mount", is_another);
        notices.into_iter().map(|notice| (notice.weight, notice.reason)).collect()
    }

    #[test]
    fn each_change_is_told_once_and_what_stays_is_not() {
        let shown = [condition("Ready", true, "Shown")];
        assert_eq!(told(&[], &shown, false), [(Weight::Normal, "Shown".to_owned())]);
        assert!(told(&shown, &shown, false).is_empty());
        let later = [Condition { message: "another text".into(), ..shown[0].clone() }];
        assert!(told(&shown, &later, false).is_empty(), "the condition has the text of now");
        let refused = [condition("Ready", false, "Refused")];
        assert_eq!(told(&shown, &refused, false), [(Weight::Warning, "Refused".to_owned())]);
        assert!(told(&refused, &refused, false).is_empty());
        let unreachable = [condition("Ready", false, "Unreachable")];
        assert_eq!(told(&refused, &unreachable, false), [(Weight::Warning, "Unreachable".to_owned())]);
        let edited = [Condition { observed_generation: Some(2), ..refused[0].clone() }];
        assert_eq!(told(&refused, &edited, false).len(), 1, "somebody changed the object, and it is refused again");
    }

    #[test]
    fn of_a_load_its_beginning_and_its_end_are_told() {
        let running = [
            condition(ACCEPTED, true, "Submitted"),
            condition(COMPLETE, false, "Running"),
            condition(FAILED, false, "NotFailed"),
        ];
        assert_eq!(told(&[], &running, true), [(Weight::Normal, "Submitted".to_owned())]);
        let mut ended = running.clone();
        ended[1] = condition(COMPLETE, true, "Loaded");
        assert_eq!(told(&running, &ended, false), [(Weight::Normal, "Loaded".to_owned())]);
        assert!(!is_amiss(&ended));
        let mut failed = running.clone();
        (failed[1], failed[2]) = (condition(COMPLETE, false, "Ended"), condition(FAILED, true, "Failed"));
        assert_eq!(told(&running, &failed, false), [(Weight::Warning, "Failed".to_owned())]);
        assert!(is_amiss(&failed));
        assert_eq!(told(&failed, &running, true), [(Weight::Normal, "Submitted".to_owned())], "another job");
        let waiting = [condition(ACCEPTED, false, "Waiting")];
        assert_eq!(told(&[], &waiting, false), [(Weight::Normal, "Waiting".to_owned())]);
    }

    #[test]
    fn a_note_is_as_long_as_an_api_server_takes() {
        let long = Condition { message: "ü".repeat(MAX_NOTE), ..condition("Ready", false, "Refused") };
        let note = of_conditions(&[], &[long], "Mount", false).remove(0).note;
        assert!(note.len() <= MAX_NOTE && note.len() > MAX_NOTE - 4 && note.ends_with('…'), "{}", note.len());
    }

    #[test]
    fn what_becomes_of_a_worker_names_it() {
        let pod =
            WorkerPod { name: "p".into(), uid: "u".into(), worker: "w7".into(), node: "n1".into(), released: false };
        let within = Duration::from_secs(1800);
        for news in [News::Asked, News::HandedOver, News::TimedOut, News::Stays] {
            let notice = of_worker(news, &pod, within);
            assert!(notice.note.contains("w7"), "{}", notice.note);
            assert_eq!(notice.weight == Weight::Warning, news == News::TimedOut);
        }
        assert!(of_worker(News::TimedOut, &pod, within).note.contains("30m"));
    }
}
