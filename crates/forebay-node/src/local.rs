//! What can be asked of a mount's materialised files over its control socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_doctor::facts::Memory;
use forebay_fuse::{LocalFiles, LocalOptions, MountOptions};
use forebay_materialise::{Lender, NOT_PERMITTED, Why, may_pass_through};
use forebay_types::{ByteSize, FsPath};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::lending::StoreLender;

/// Bytes of files that are listed, at most: an answer has some room.
const MAX_LISTED: usize = 3 << 20;
/// A mount whose worker is elsewhere takes this share of the memory that it may have: other programs of the machine, which it is
/// there for, shall not notice.
const OWN_SHARE: u64 = 16;
const OWN_MAX: ByteSize = ByteSize::gib(8);
/// Less is of no use.
const OWN_MIN: ByteSize = ByteSize::mib(64);
/// How an answer begins where there are none and cannot be.
pub const OFF: &str = "materialised files are off here";
/// How long finding what is to be dropped may take.
const DROP_WITHIN: Duration = Duration::from_secs(60);

/// What can be asked. Paths are not text: a name may be none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the fields are the operations' arguments")]
pub enum Question {
    /// Have this, and all below it, materialised. The answer has the number of the `request` to ask for.
    Add { path: Vec<u8> },
    /// How far a request is.
    Progress { request: u64 },
    /// Drop this, and all below it.
    Drop { path: Vec<u8> },
    /// Drop all.
    Clear,
    /// Which there are.
    List,
}

impl Question {
    /// Whether it takes or gives up room.
    fn changes(&self) -> bool {
        match self {
            Self::Add { .. } | Self::Drop { .. } | Self::Clear => true,
            Self::Progress { .. } | Self::List => false,
        }
    }
}

/// The materialised files of a mount, as they are asked for.
pub struct Answerer {
    /// Without any, why there are none.
    files: Result<LocalFiles, String>,
    /// Whether every user may enter the mount, and so see names in it.
    is_open: bool,
}

impl Answerer {
    /// Of the files of a mount with this configuration.
    pub(crate) fn new(files: Option<LocalFiles>, config: &Config, automatic: &Automatic) -> Self {
        let why = || automatic.room(config).err().unwrap_or_else(|| "this mount has none".to_owned());
        let is_open = config.fuse_allow_other.unwrap_or_else(|| MountOptions::default().allow_other);
        Self { files: files.ok_or_else(why), is_open }
    }

    /// What a mount that keeps none answers.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { files: Err("client.local.size is 0".to_owned()), is_open: true }
    }

    /// The answer to `question`; `is_trusted`: asked by root or the mount's own user.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub async fn answer(&self, question: Question, is_trusted: bool) -> anyhow::Result<Value> {
        let may_ask = is_trusted || (self.is_open && !question.changes());
        anyhow::ensure!(may_ask, "only root and the user who mounted may ask for that");
        let files = self.files.as_ref().map_err(|why| anyhow::anyhow!("{OFF}: {why}"))?;
        answer(files, question).await
    }
}

async fn answer(files: &LocalFiles, question: Question) -> anyhow::Result<Value> {
    match question {
        Question::Add { path } => {
            if let Some(why) = files.why_off() {
                anyhow::bail!("{OFF}: {why}");
            }
            let request = files.add(FsPath::new(path)?, Why::Command);
            // One that is refused has ended already.
            if let Some(error) =
                files.progress(request).filter(|progress| progress.files == 0).and_then(|done| done.error)
            {
                anyhow::bail!("{error}");
            }
            Ok(json!({ "request": request }))
        }
        Question::Progress { request } => {
            Ok(serde_json::to_value(files.progress(request).context("there is no such request")?)?)
        }
        Question::Drop { path } => {
            let path = FsPath::new(path)?;
            let dropped = tokio::time::timeout(DROP_WITHIN, files.release(&path)).await;
            Ok(json!({ "dropped": dropped.context("there is too much below it; drop it in parts")?? }))
        }
        Question::Clear => Ok(json!({ "dropped": files.release_all() })),
        Question::List => {
            let all = files.list();
            Ok(json!({ "files": all.len(), "listed": fitting(&all, MAX_LISTED)? }))
        }
    }
}

/// The first of `all` that take no more than so many bytes.
fn fitting(all: &[impl Serialize], most: usize) -> serde_json::Result<Vec<Value>> {
    let (mut listed, mut bytes) = (Vec::new(), 0);
    for one in all {
        let one = serde_json::to_value(one)?;
        bytes += one.to_string().len() + 1;
        if bytes > most {
            break;
        }
        listed.push(one);
    }
    Ok(listed)
}

/// Where files have their room from if no size is set.
#[derive(Clone)]
pub(crate) enum Automatic {
    /// The worker in this process lends it.
    Lent(Arc<StoreLender>),
    /// Memory of the mount's own: there is no worker in this process.
    Own,
    /// There is a worker in this process, which lends none, and why.
    None(String),
}

/// The room that files have.
#[derive(Debug)]
struct Room {
    size: ByteSize,
    lender: Option<Arc<dyn Lender>>,
    is_automatic: bool,
}

impl Automatic {
    /// What the worker in this process lends.
    pub(crate) fn of_worker(lender: Result<&Arc<StoreLender>, &str>) -> Self {
        match lender {
            Ok(lender) => Self::Lent(Arc::clone(lender)),
            Err(why) => Self::None(why.to_owned()),
        }
    }

    /// The room that files have in a mount with this configuration.
    ///
    /// # Errors
    /// Why they have none, for people.
    fn room(&self, config: &Config) -> Result<Room, String> {
        self.room_if(may_pass_through(), config)
    }

    /// The same. `may`: whether the kernel lets this process pass files through.
    fn room_if(&self, may: bool, config: &Config) -> Result<Room, String> {
        match (config.client_local_size, self) {
            (Some(size), _) if size.as_u64() == 0 => Err("client.local.size is 0".to_owned()),
            (Some(size), _) => Ok(Room { size, lender: None, is_automatic: false }),
            (None, _) if config.client_local_dir.is_some() => {
                Err("client.local.dir is set, and client.local.size is not".to_owned())
            }
            // The kernel is not even asked for what nobody could use: it counts such a mount as one layer more.
            (None, _) if !may => Err(format!("{NOT_PERMITTED}; `forebay doctor` says what that costs")),
            (None, Self::Lent(lender)) => {
                let lent = Some(Arc::clone(lender) as Arc<dyn Lender>);
                Ok(Room { size: lender.most(), lender: lent, is_automatic: true })
            }
            (None, Self::Own) => {
                let size = own_room(Memory::read(&Root::default()).usable_bytes());
                let room = size.map(|size| Room { size, lender: None, is_automatic: true });
                room.ok_or_else(|| "there is too little memory, or it is not known how much".to_owned())
            }
            (None, Self::None(why)) => Err(why.clone()),
        }
    }
}

/// The room of a mount whose worker is elsewhere, of so many bytes that its process may have.
fn own_room(usable: Option<u64>) -> Option<ByteSize> {
    const MIB: u64 = 1 << 20;
    let room = (usable? / OWN_SHARE).min(OWN_MAX.as_u64()) / MIB * MIB;
    Some(ByteSize::bytes(room)).filter(|room| *room >= OWN_MIN)
}

/// What is told of the files of a mount when it is there.
pub(crate) fn told(files: Option<&LocalFiles>, config: &Config, automatic: &Automatic) -> String {
    let room = match automatic.room(config) {
        Ok(room) => room,
        Err(why) => return format!("off: {why}"),
    };
    if let Some(why) = files.and_then(LocalFiles::why_off) {
        return format!("off: {why}; `forebay doctor` says what that costs");
    }
    let of = match (&config.client_local_dir, room.lender.is_some()) {
        (Some(dir), _) => format!("in {}", dir.display()),
        (None, true) => "of worker.memory.size".to_owned(),
        (None, false) => "of memory".to_owned(),
    };
    format!("files that are read twice are served by the kernel itself, from up to {} {of}", room.size)
}

/// Which files a mount at `mountpoint` materialises; `None`: none.
pub(crate) fn options(config: &Config, mountpoint: &Path, automatic: &Automatic) -> Option<LocalOptions> {
    let Room { size, lender, is_automatic } = automatic.room(config).ok()?;
    let files = forebay_materialise::LocalOptions {
        size,
        dir: config.client_local_dir.clone(),
        owner: format!("{} at {}", config.cluster_name.as_str(), mountpoint.display()),
        max_file_size: config.client_local_max_file_size,
        min_opens: config.client_local_min_opens,
        first_open_size: config.client_local_first_open_size,
        first_open_wait: config.client_local_first_open_wait,
        fills: config.client_local_fills,
        check_interval: config.client_local_check_interval,
        check_bandwidth: config.client_local_check_bandwidth,
        check_writes: config.client_local_check_writes,
        is_automatic,
        lender,
    };
    Some(LocalOptions { files, on_writable: config.client_local_writable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mount_without_room_for_them_says_what_to_set() {
        let error = Answerer::none().answer(Question::List, false).await.unwrap_err().to_string();
        assert!(error.starts_with(OFF) && error.contains("client.local.size"), "{error}");
    }

    #[tokio::test]
    async fn names_in_a_mount_that_only_its_user_may_enter_are_for_nobody_else() {
        let closed = Answerer { files: Err("client.local.size is 0".to_owned()), is_open: false };
        for question in [Question::List, Question::Progress { request: 1 }] {
            let error = closed.answer(question, false).await.unwrap_err().to_string();
            assert!(error.contains("only root"), "{error}");
        }
        assert!(closed.answer(Question::List, true).await.unwrap_err().to_string().starts_with(OFF));
        assert!(Answerer::none().answer(Question::Clear, false).await.unwrap_err().to_string().contains("only root"));
    }

    #[test]
    fn no_more_is_listed_than_an_answer_has_room_for() {
        let names: Vec<String> = (0..100).map(|name| format!("{name:0>98}")).collect();
        assert_eq!(fitting(&names, 101 * 7 + 100).unwrap().len(), 7);
        assert_eq!(fitting(&names, 1 << 20).unwrap().len(), 100);
    }

    #[test]
    fn they_have_room_unless_they_are_turned_off_and_what_is_set_is_beside_the_workers() {
        let none = Automatic::None("no worker lends any".to_owned());
        let mut config = Config::default();
        assert!(options(&config, Path::new("/mnt"), &none).is_none());
        assert!(told(None, &config, &none).starts_with("off: "));
        assert_eq!(none.room_if(true, &config).unwrap_err(), "no worker lends any");
        assert!(Automatic::Own.room_if(false, &config).unwrap_err().contains("CAP_SYS_ADMIN"));
        let room = Automatic::Own.room_if(true, &config).unwrap();
        assert!(room.is_automatic && room.size <= OWN_MAX && room.size >= OWN_MIN, "{room:?}");
        config.client_local_size = Some(ByteSize::gib(1));
        let options = options(&config, Path::new("/mnt"), &none).unwrap();
        assert!(options.on_writable && options.files.owner.ends_with(" at /mnt"));
        assert!(!options.files.is_automatic && options.files.lender.is_none());
        let on = told(None, &config, &none);
        assert!(on.starts_with("files that are read twice are served by the kernel itself, from up to 1GiB"), "{on}");
        config.client_local_size = Some(ByteSize::bytes(0));
        assert!(told(None, &config, &Automatic::Own).contains("client.local.size is 0"));
        config.client_local_size = None;
        config.client_local_dir = Some("/mnt/nvme0".into());
        assert!(Automatic::Own.room(&config).unwrap_err().contains("client.local.size is not"));
    }

    #[test]
    fn a_mount_whose_worker_is_elsewhere_takes_a_sixteenth_of_its_memory_and_never_much() {
        let room = |usable: u64| own_room(Some(usable)).map(|room| room.as_u64());
        assert_eq!(room(16 << 30), Some(1 << 30));
        assert_eq!(room(2 << 40), Some(8 << 30));
        assert_eq!((room(512 << 20), own_room(None)), (None, None), "too little to be of use, and who knows");
    }
}
