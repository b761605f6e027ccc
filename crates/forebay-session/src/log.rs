//! What the code here tells of itself, for the log of the program that it runs in.
//!
//! A thread to which something happens puts a [`Message`] into a queue of a bounded length: it takes no lock, makes no system call, and
//! calls nothing of the program's. Whoever has the program's log takes the messages out now and then. What finds the queue full is
//! counted, and not kept.
//!
//! A forked child may have the queue as another thread left it half-way. It has none before it calls [`start`] itself, which makes
//! another one, and what happens until then is not kept ([`crate::fork`]).
//!
//! How much is wanted is a number, as other languages have other levels: 0 is nothing, 1 errors, 2 warnings, 3 what a person may want to
//! know, 4 what a developer does, 5 all of it. Of libraries of others, warnings are the most.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use forebay_locks::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Subscriber;
use tracing::{Event, Level, Metadata};

use crate::fork::OfProcess;

/// Messages that nobody has taken yet.
const MAX_MESSAGES: usize = 1024;
/// Bytes of what a message says, and of its fields, each.
const MAX_TEXT: usize = 4096;
const WARNINGS: u8 = 2;
/// Has nothing to say that the code which uses it does not say better: an object that is not there is an error to it.
const S3_LIBRARY: &str = "s3s";

/// In a child, until it makes its own, that of its parent.
static CURRENT: AtomicPtr<OfProcess<Queue>> = AtomicPtr::new(std::ptr::null_mut());
static WANTED: AtomicU8 = AtomicU8::new(0);
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Message {
    /// How bad it is: 1 is an error, 2 a warning, 5 the least.
    pub level: u8,
    /// The module of the code, such as `forebay_client::routes`, or what a library calls itself.
    pub target: &'static str,
    /// The file of the code.
    pub file: Option<&'static str>,
    /// The line of it.
    pub line: Option<u32>,
    /// When.
    pub at: SystemTime,
    /// What, with the values that belong to it: `a worker does not answer worker="node1:29999"`.
    pub text: String,
}

/// What was taken out.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// The oldest one first.
    pub messages: Vec<Message>,
    /// How many found no room since the last time.
    pub lost: u64,
}

/// Begins to keep what happens in this process, as far as it is wanted from now on. Called again, it changes what is wanted.
pub fn start(wanted: u8) {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: what was once put there is never freed.
    if unsafe { current.as_ref() }.and_then(OfProcess::get).is_none() {
        let made = Box::into_raw(Box::new(OfProcess::new(Queue::new(MAX_MESSAGES))));
        if CURRENT.compare_exchange(current, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: no other code has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    // Once only: `tracing` takes a lock for each event that is new to it as soon as it has seen two of these, and a fork could hold it.
    if !IS_INSTALLED.swap(true, Ordering::AcqRel) {
        // It is refused in a program that has a log of its own already.
        let _ = tracing::subscriber::set_global_default(ToQueue);
    }
    if WANTED.swap(wanted, Ordering::AcqRel) != wanted {
        // What is not wanted costs a look at a number where it would happen.
        tracing::callsite::rebuild_interest_cache();
    }
}

/// What happened since the last time. Does not wait.
#[must_use]
pub fn take() -> Taken {
    queue().map(Queue::take).unwrap_or_default()
}

fn queue() -> Option<&'static Queue> {
    // SAFETY: what was once put there is never freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.and_then(OfProcess::get)
}

/// Of the standard library's channels, one with a bound takes no lock unless somebody waits at the other end, which nobody does.
#[derive(Debug)]
struct Queue {
    sender: SyncSender<Message>,
    /// Held by those who take out, and by no one else.
    receiver: Mutex<Receiver<Message>>,
    lost: AtomicU64,
}

impl Queue {
    fn new(length: usize) -> Self {
        let (sender, receiver) = sync_channel(length);
        Self { sender, receiver: Mutex::new(receiver), lost: AtomicU64::new(0) }
    }

    fn put(&self, message: Message) {
        if self.sender.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// No more than there is room for, however fast others put in.
    fn take(&self) -> Taken {
        let Some(receiver) = self.receiver.try_lock() else { return Taken::default() };
        let messages = receiver.try_iter().take(MAX_MESSAGES).collect();
        Taken { messages, lost: self.lost.swap(0, Ordering::Relaxed) }
    }
}

/// Puts events into the queue of this process. Nothing here has spans.
struct ToQueue;

impl Subscriber for ToQueue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(metadata.level()) <= most_of(metadata.target(), WANTED.load(Ordering::Acquire))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match WANTED.load(Ordering::Acquire) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(queue) = queue() {
            queue.put(Message::of(event));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => WARNINGS,
        Level::INFO => 3,
        Level::DEBUG => 4,
        _ => 5,
    }
}

/// How much is kept of what `target` says.
fn most_of(target: &str, wanted: u8) -> u8 {
    if target.starts_with(S3_LIBRARY) {
        0
    } else if target.starts_with("forebay") {
        wanted
    } else {
        wanted.min(WARNINGS)
    }
}

impl Message {
    fn of(event: &Event<'_>) -> Self {
        let (metadata, mut said) = (event.metadata(), Said::default());
        event.record(&mut said);
        let Said { text: Bounded(mut text), fields: Bounded(fields) } = said;
        text.push_str(if text.is_empty() { fields.trim_start() } else { &fields });
        Self {
            level: number(metadata.level()),
            target: metadata.target(),
            file: metadata.file(),
            line: metadata.line(),
            at: SystemTime::now(),
            text,
        }
    }
}

/// The fields of an event, of which one is what it says.
#[derive(Default)]
struct Said {
    text: Bounded,
    fields: Bounded,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // It fails only if `value` does, and then what it wrote is kept.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// As much of a text as there is room for.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_TEXT.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was kept of these tests: others are told of, too.
    fn ours() -> Vec<Message> {
        take().messages.into_iter().filter(|message| message.target == module_path!()).collect()
    }

    #[test]
    fn what_is_wanted_is_kept_in_order_and_the_rest_is_not() {
        start(2);
        let answer = 42;
        tracing::info!("not wanted");
        tracing::warn!(answer, name = "x", why = %"cold", "told of {answer}");
        tracing::error!(answer = 42);
        let [first, second] = <[Message; 2]>::try_from(ours()).unwrap();
        assert_eq!((first.level, first.text.as_str()), (2, r#"told of 42 answer=42 name="x" why=cold"#));
        assert_eq!((second.level, second.text.as_str()), (1, "answer=42"));
        assert!(first.file.unwrap().ends_with("log.rs") && first.line.is_some() && first.at <= second.at);
        start(4);
        tracing::debug!("wanted by now");
        tracing::trace!("not wanted");
        tracing::info_span!("no span is").in_scope(|| tracing::info!("within"));
        assert_eq!(ours().iter().map(|message| message.text.as_str()).collect::<Vec<_>>(), ["wanted by now", "within"]);
        start(0);
        tracing::error!("not wanted");
        assert!(ours().is_empty());
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told_once() {
        let message = |text: &str| Message {
            level: 2,
            target: "",
            file: None,
            line: None,
            at: SystemTime::UNIX_EPOCH,
            text: text.to_owned(),
        };
        let queue = Queue::new(2);
        for text in ["a", "b", "c", "d"] {
            queue.put(message(text));
        }
        let taken = queue.take();
        assert_eq!(taken.messages.iter().map(|message| message.text.as_str()).collect::<String>(), "ab");
        assert_eq!((taken.lost, queue.take().lost), (2, 0));
        queue.put(message("e"));
        assert_eq!(queue.take().messages.len(), 1);
    }

    #[test]
    fn a_text_of_any_length_is_cut_where_a_letter_ends() {
        let mut text = Bounded::default();
        write!(text, "a{}", "ä".repeat(MAX_TEXT)).unwrap();
        write!(text, "more").unwrap();
        assert_eq!(text.0.len(), MAX_TEXT);
        assert!(text.0.ends_with('m') && text.0.starts_with("aä"));
    }

    #[test]
    fn of_others_no_more_than_warnings_are_kept() {
        assert_eq!((most_of("forebay_client::routes", 5), most_of("hyper::client", 5), most_of("hyper", 1)), (5, 2, 1));
        assert_eq!(most_of("s3s::ops", 5), 0);
    }
}
