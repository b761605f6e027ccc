//! Who the processes of this machine prove to be, and what with. It is recorded and passed on, so no secret is in it.

use serde::{Deserialize, Serialize};

/// What became of opening the files of an identity, as a process of this configuration opens them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Security {
    /// `security.mode`, by which they were opened.
    pub mode: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// The fingerprints of the keys of the cluster, first that of the one which signs.
    pub keys: Vec<String>,
    /// The identity that a process has here.
    pub identity: Option<String>,
    /// The role in it.
    pub role: Option<String>,
    /// The certificates in the files, those of the process first.
    pub certificates: Vec<Certificate>,
    /// How many identities are denied.
    pub denied: Option<usize>,
    /// Why no process of this configuration starts here.
    pub refusal: Option<Refusal>,
}

/// A certificate in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificate {
    /// The file.
    pub file: String,
    /// Its URI, or its subject.
    pub name: String,
    /// Whether it is of an authority that is believed, and not one that a process presents.
    pub is_authority: bool,
    /// Since when it is valid, in seconds since 1970.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

/// Why there is no identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The file that is to blame, if it is one.
    pub file: Option<String>,
    /// What is wrong.
    pub obstacle: Obstacle,
}

/// What is wrong with a file of an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// It is not there.
    Missing,
    /// It cannot be read: the system's words.
    Unreadable(String),
    /// It is a secret that others than its owner may open: its permissions, as `chmod` takes them.
    Open(u32),
    /// It is a secret of another user.
    Owner {
        /// Whose it is.
        owner: u32,
        /// Who asked.
        user: u32,
    },
    /// What is in it does not belong there: why.
    Content(String),
    /// It is a certificate, and this file holds the key of another one.
    Pair(String),
    /// It is a certificate that nobody would believe: why.
    Refused(String),
    /// The settings, or the system: what is wrong with them.
    Other(String),
}
