//! What can be asked of a mount's materialised files over its control socket.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_fuse::{LocalFiles, LocalOptions, MountOptions};
use forebay_materialise::Why;
use forebay_types::FsPath;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Bytes of files that are listed, at most: an answer has some room.
const MAX_LISTED: usize = 3 << 20;
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
    /// `None`: there is no room for any.
    files: Option<LocalFiles>,
    /// Whether every user may enter the mount, and so see names in it.
    is_open: bool,
}

impl Answerer {
    /// Of the files of a mount with this configuration.
    pub fn new(files: Option<LocalFiles>, config: &Config) -> Self {
        let is_open = config.fuse_allow_other.unwrap_or_else(|| MountOptions::default().allow_other);
        Self { files, is_open }
    }

    /// What a mount that keeps none answers.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { files: None, is_open: true }
    }

    /// The answer to `question`; `is_trusted`: asked by root or the mount's own user.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub async fn answer(&self, question: Question, is_trusted: bool) -> anyhow::Result<Value> {
        let may_ask = is_trusted || (self.is_open && !question.changes());
        anyhow::ensure!(may_ask, "only root and the user who mounted may ask for that");
        let files = self.files.as_ref().with_context(|| format!("{OFF}: set client.local.size and mount again"))?;
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

/// Which files a mount at `mountpoint` materialises; `None`: none.
pub fn options(config: &Config, mountpoint: &Path) -> Option<LocalOptions> {
    if config.client_local_size.as_u64() == 0 {
        return None;
    }
    let files = forebay_materialise::LocalOptions {
        size: config.client_local_size,
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
        let closed = Answerer { files: None, is_open: false };
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
    fn there_are_none_until_they_are_given_room() {
        let mut config = Config::default();
        assert!(options(&config, Path::new("/mnt")).is_none());
        config.client_local_size = forebay_types::ByteSize::gib(1);
        let options = options(&config, Path::new("/mnt")).unwrap();
        assert!(options.on_writable && options.files.owner.ends_with(" at /mnt"));
    }
}
