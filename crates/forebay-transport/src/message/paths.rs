//! How a worker is reached besides TCP.

use std::fmt;

use bytes::Bytes;
use forebay_types::Failure;
use serde::{Deserialize, Serialize};

use super::{MAX_NAME, decode, encode, malformed};

/// Listeners of one worker, at most: more than any machine has network cards.
pub const MAX_PATHS: usize = 16;

/// The version of what goes over verbs. Only the same one is understood.
pub const VERBS_VERSION: u8 = 1;

/// The ways to reach a worker besides TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathsReply {
    /// The version of UCX that it runs, `1.20.0`; only the same major and minor understand it.
    pub ucx: Option<String>,
    /// Where it listens for data, by UCX.
    pub data: Vec<PathAddress>,
    /// Where it listens for metadata, by UCX.
    pub metadata: Option<PathAddress>,
    /// Where it listens by verbs. Releases without verbs neither send nor read this.
    pub verbs: Option<VerbsPaths>,
}

/// Where a worker listens by verbs. rdma_cm finds card, port and GID of each end by the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsPaths {
    /// What it speaks there; of another version than [`VERBS_VERSION`] nothing else is known.
    pub version: u8,
    /// For data.
    pub data: Vec<PathAddress>,
    /// For metadata.
    pub metadata: Option<PathAddress>,
}

/// What every release reads and sends of a [`PathsReply`]. Behind it come, from those with verbs, a byte of their version and
/// [`WireListeners`] of that version.
#[derive(Serialize, Deserialize)]
struct WirePaths {
    ucx: Option<String>,
    listeners: WireListeners,
}

/// Where a worker listens by one provider.
#[derive(Serialize, Deserialize)]
struct WireListeners {
    data: Vec<PathAddress>,
    metadata: Option<PathAddress>,
}

impl fmt::Display for PathsReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let card = |path: &PathAddress| format!("{} port {}", path.card, path.port);
        let listeners = |data: &[PathAddress], metadata: &Option<PathAddress>| {
            let data: Vec<_> = data.iter().map(card).collect();
            let data = if data.is_empty() { "none".to_owned() } else { data.join(", ") };
            let metadata = metadata.as_ref().map_or_else(|| "none".to_owned(), card);
            format!("for data: {data}, for metadata: {metadata}")
        };
        let ucx = self.ucx.iter().map(|ucx| format!("UCX {ucx}, {}", listeners(&self.data, &self.metadata)));
        let verbs = self.verbs.iter().map(|verbs| format!("verbs, {}", listeners(&verbs.data, &verbs.metadata)));
        let offered: Vec<_> = verbs.chain(ucx).collect();
        f.write_str(&if offered.is_empty() { "TCP alone".to_owned() } else { offered.join("; ") })
    }
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAddress {
    /// The network card, for logs.
    pub card: String,
    /// The host; empty when it is the one that clients know the worker by.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl PathsReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let listeners = WireListeners { data: self.data.clone(), metadata: self.metadata.clone() };
        let reply = encode(&WirePaths { ucx: self.ucx.clone(), listeners });
        let Some(verbs) = &self.verbs else { return reply };
        let listeners = WireListeners { data: verbs.data.clone(), metadata: verbs.metadata.clone() };
        [&reply[..], &[verbs.version], &encode(&listeners)].concat().into()
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        const WHAT: &str = "paths reply";
        let wrong = |error| malformed(WHAT, error);
        let (wire, rest): (WirePaths, &[u8]) = postcard::take_from_bytes(bytes).map_err(wrong)?;
        let WirePaths { ucx, listeners } = wire;
        let verbs = match rest {
            // As releases without verbs send it.
            [] => None,
            [VERBS_VERSION, rest @ ..] => {
                let WireListeners { data, metadata } = decode(WHAT, rest)?;
                Some(VerbsPaths { version: VERBS_VERSION, data, metadata })
            }
            [version, ..] => Some(VerbsPaths { version: *version, ..VerbsPaths::default() }),
        };
        let reply = Self { ucx, data: listeners.data, metadata: listeners.metadata, verbs };
        let by_ucx = || reply.data.iter().chain(&reply.metadata);
        let by_verbs = || reply.verbs.iter().flat_map(|verbs| verbs.data.iter().chain(&verbs.metadata));
        let most = by_ucx().count().max(by_verbs().count());
        if most > MAX_PATHS {
            return Err(malformed(WHAT, format!("{most} listeners")));
        }
        let addresses = by_ucx().chain(by_verbs());
        let names = addresses.flat_map(|address| [&address.card, &address.host]).chain(&reply.ucx);
        match names.map(String::len).max() {
            Some(length) if length > MAX_NAME => Err(malformed(WHAT, format!("a name of {length} bytes"))),
            _ => Ok(reply),
        }
    }

    /// Whether the ways for data are those of `other`.
    #[must_use]
    pub fn has_data_of(&self, other: &Self) -> bool {
        self.ucx == other.ucx && self.data == other.data && self.data_by_verbs() == other.data_by_verbs()
    }

    /// Whether the ways for metadata are those of `other`.
    #[must_use]
    pub fn has_metadata_of(&self, other: &Self) -> bool {
        let is_same_by_verbs = self.metadata_by_verbs() == other.metadata_by_verbs();
        self.ucx == other.ucx && self.metadata == other.metadata && is_same_by_verbs
    }

    fn data_by_verbs(&self) -> Option<(u8, &[PathAddress])> {
        self.verbs.as_ref().map(|verbs| (verbs.version, &verbs.data[..]))
    }

    fn metadata_by_verbs(&self) -> Option<(u8, Option<&PathAddress>)> {
        self.verbs.as_ref().map(|verbs| (verbs.version, verbs.metadata.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_the_wire_and_those_that_no_worker_has_are_refused() {
        let address = PathAddress { card: "mlx5_0:1".into(), host: "10.0.0.1".into(), port: 59999 };
        let paths = PathsReply {
            ucx: Some("1.20.0".into()),
            data: vec![address.clone()],
            metadata: Some(address.clone()),
            verbs: None,
        };
        let crowd = PathsReply { data: vec![address.clone(); MAX_PATHS + 1], ..paths.clone() };
        let long = PathsReply { ucx: Some("1".repeat(256)), ..paths.clone() };
        assert_eq!(PathsReply::decode(&paths.encode()), Ok(paths));
        assert!(PathsReply::decode(&crowd.encode()).is_err() && PathsReply::decode(&long.encode()).is_err());
    }

    /// As releases before verbs have it.
    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct EarlierPaths {
        ucx: Option<String>,
        data: Vec<PathAddress>,
        metadata: Option<PathAddress>,
    }

    #[test]
    fn paths_by_verbs_are_read_by_who_knows_them_and_nobody_else_is_troubled() {
        let address = |port| PathAddress { card: "mlx5_0:1".into(), host: "10.0.0.1".into(), port };
        let (data, metadata) = (vec![address(1)], Some(address(2)));
        let earlier = EarlierPaths { ucx: Some("1.20.0".into()), data: data.clone(), metadata: metadata.clone() };
        let read = PathsReply::decode(&encode(&earlier)).unwrap();
        assert_eq!(read, PathsReply { ucx: earlier.ucx.clone(), data, metadata, verbs: None });
        assert_eq!(read.encode(), encode(&earlier), "without verbs it is what it was, byte for byte");
        let verbs =
            VerbsPaths { version: VERBS_VERSION, data: vec![address(3), address(4)], metadata: Some(address(5)) };
        let both = PathsReply { verbs: Some(verbs.clone()), ..read.clone() };
        assert_eq!(PathsReply::decode(&both.encode()), Ok(both.clone()));
        assert_eq!(decode::<EarlierPaths>("", &both.encode()), Ok(earlier));
        let alone = PathsReply { verbs: Some(verbs.clone()), ..PathsReply::default() };
        assert_eq!(PathsReply::decode(&alone.encode()), Ok(alone));
        // Of a later version nothing is known but that it is one.
        let later =
            PathsReply { verbs: Some(VerbsPaths { version: VERBS_VERSION + 1, ..verbs.clone() }), ..read.clone() };
        let told = PathsReply::decode(&later.encode()).unwrap();
        assert_eq!(told.verbs, Some(VerbsPaths { version: VERBS_VERSION + 1, ..VerbsPaths::default() }));
        assert_eq!((told.ucx, told.data), (read.ucx, read.data));
        let crowd = VerbsPaths { data: vec![address(6); MAX_PATHS + 1], ..verbs };
        assert!(PathsReply::decode(&PathsReply { verbs: Some(crowd), ..PathsReply::default() }.encode()).is_err());
        let encoded = both.encode();
        assert!(PathsReply::decode(&encoded[..encoded.len() - 1]).is_err(), "cut off");
    }

    #[test]
    fn what_has_changed_is_told_apart_for_data_and_metadata() {
        let address = |port| PathAddress { card: "a".into(), host: String::new(), port };
        let verbs = |data, metadata| {
            Some(VerbsPaths { version: VERBS_VERSION, data: vec![address(data)], metadata: Some(address(metadata)) })
        };
        let old = PathsReply { verbs: verbs(1, 2), ..PathsReply::default() };
        let same = |new: &PathsReply| (new.has_data_of(&old), new.has_metadata_of(&old));
        assert_eq!(same(&old), (true, true));
        assert_eq!(same(&PathsReply { verbs: verbs(3, 2), ..old.clone() }), (false, true));
        assert_eq!(same(&PathsReply { verbs: verbs(1, 3), ..old.clone() }), (true, false));
        assert_eq!(same(&PathsReply { ucx: Some("1.20.0".into()), ..old.clone() }), (false, false));
        assert_eq!(same(&PathsReply::default()), (false, false));
    }
}
