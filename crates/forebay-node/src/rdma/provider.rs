//! Which library drives the cards, here and on the way to each worker. Pure.
//!
//! | `network.rdma.data.provider` | a worker listens by | a client asks a worker by |
//! | --- | --- | --- |
//! | `verbs`, `ucx` | that alone | that alone |
//! | `auto` | both, as far as it can have them | verbs if both ends have them, else UCX |
//!
//! What remains is TCP. Settings that only UCX knows have `auto` mean UCX, and are refused with `verbs` ([`forebay_config`]).

use forebay_config::{Config, RdmaProvider};
use forebay_rdma::Provider;
use forebay_transport::message::{PathsReply, VERBS_VERSION};

const OFFERS_NONE: &str = "the worker offers no RDMA";
/// What gives both ends the same library, also where one is missing and the setting is right.
const HAVE_BOTH: &str = "set network.rdma.data.provider = \"auto\" on both sides; where it is, the log of the start has what is \
                         wrong with the library that is missing (`RDMA goes without this library`)";

/// What data is to go by, the preferred one first.
pub(super) fn of_data(config: &Config) -> &'static [Provider] {
    wanted(config.network_rdma_data_provider, config.needs_ucx_for_data())
}

/// What metadata is to go by.
pub(super) fn of_metadata(config: &Config) -> &'static [Provider] {
    wanted(config.network_rdma_data_provider, config.needs_ucx_for_metadata())
}

fn wanted(setting: RdmaProvider, needs_ucx: bool) -> &'static [Provider] {
    match setting {
        RdmaProvider::Verbs => &[Provider::Verbs],
        RdmaProvider::Auto if !needs_ucx => &[Provider::Verbs, Provider::Ucx],
        RdmaProvider::Auto | RdmaProvider::Ucx => &[Provider::Ucx],
    }
}

/// In which order libraries are started. UCX first: it has libibverbs keep registered memory from children (`ibv_fork_init`), which is
/// refused once anything is registered. And where no more memory may be locked than one of them takes, who had UCX before keeps it.
pub(super) fn by_start(wanted: &'static [Provider]) -> impl Iterator<Item = Provider> {
    wanted.iter().rev().copied()
}

/// What one end has for data, or for metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct End<'a> {
    /// The version of what it speaks over verbs.
    pub(super) verbs: Option<u8>,
    /// The version of its UCX.
    pub(super) ucx: Option<&'a str>,
}

impl<'a> End<'a> {
    /// A worker, for data.
    pub(super) fn of_data(offered: &'a PathsReply) -> Self {
        let verbs = offered.verbs.as_ref().filter(|verbs| verbs.version != VERBS_VERSION || !verbs.data.is_empty());
        let ucx = offered.ucx.as_deref().filter(|_| !offered.data.is_empty());
        Self { verbs: verbs.map(|verbs| verbs.version), ucx }
    }

    /// A worker, for metadata.
    pub(super) fn of_metadata(offered: &'a PathsReply) -> Self {
        let verbs = offered.verbs.as_ref();
        let verbs = verbs.filter(|verbs| verbs.version != VERBS_VERSION || verbs.metadata.is_some());
        let ucx = offered.ucx.as_deref().filter(|_| offered.metadata.is_some());
        Self { verbs: verbs.map(|verbs| verbs.version), ucx }
    }

    fn is_without(self) -> bool {
        self == Self::default()
    }
}

/// By what data goes to the worker that has `there`, and `offered` all of it.
///
/// # Errors
/// Why by nothing.
pub(super) fn for_data(here: End<'_>, there: End<'_>, offered: &PathsReply) -> Result<Provider, String> {
    match (here.is_without(), there.is_without()) {
        _ if offered.ucx.is_none() && offered.verbs.is_none() => Err(OFFERS_NONE.to_owned()),
        (true, _) => Err("there is no RDMA for data here".to_owned()),
        (_, true) => Err("the worker offers RDMA for metadata only".to_owned()),
        (false, false) => common(here, there),
    }
}

/// What both ends have and understand, verbs first.
///
/// # Errors
/// Why there is nothing, and what to do.
pub(super) fn common(here: End<'_>, there: End<'_>) -> Result<Provider, String> {
    let without_verbs = match (here.verbs, there.verbs) {
        (Some(ours), Some(theirs)) if ours == theirs => return Ok(Provider::Verbs),
        (Some(ours), Some(theirs)) => Some(format!(
            "the worker speaks version {theirs} over verbs, we speak {ours}; run the same release of Forebay on both sides"
        )),
        (Some(_), None) if here.ucx.is_none() => {
            Some(format!("the worker offers UCX, and there are verbs alone here; {HAVE_BOTH}"))
        }
        _ => None,
    };
    let without_ucx = match (here.ucx, there.ucx) {
        (Some(ours), Some(theirs)) if release(ours) == release(theirs) => return Ok(Provider::Ucx),
        (Some(ours), Some(theirs)) => {
            Some(format!("the worker runs UCX {theirs}, we run {ours}; install the same UCX release on both sides"))
        }
        (Some(_), None) if here.verbs.is_none() => {
            Some(format!("the worker offers verbs, and there is UCX alone here; {HAVE_BOTH}"))
        }
        _ => None,
    };
    let reasons: Vec<_> = without_verbs.into_iter().chain(without_ucx).collect();
    Err(if reasons.is_empty() { OFFERS_NONE.to_owned() } else { reasons.join("; ") })
}

/// The part of UCX's version that must be the same.
fn release(version: &str) -> Option<&str> {
    version.rsplit_once('.').map(|(release, _)| release)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::message::{PathAddress, VerbsPaths};

    fn config(settings: &[&str]) -> Config {
        let sources = forebay_config::Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
        Config::load(&sources).unwrap().config
    }

    #[test]
    fn auto_is_verbs_and_ucx_unless_something_is_set_that_only_ucx_knows() {
        const BOTH: [Provider; 2] = [Provider::Verbs, Provider::Ucx];
        let of = |settings: &[&str]| (of_data(&config(settings)), of_metadata(&config(settings)));
        assert_eq!(of(&[]), (&BOTH[..], &BOTH[..]));
        assert_eq!(of(&["network.rdma.data.provider=verbs"]), (&BOTH[..1], &BOTH[..1]));
        assert_eq!(of(&["network.rdma.data.provider=ucx"]), (&BOTH[1..], &BOTH[1..]));
        assert_eq!(of(&["network.rdma.data.transports=rc"]), (&BOTH[1..], &BOTH[1..]));
        assert_eq!(of(&["network.rdma.data.partition_key=0x8001"]), (&BOTH[1..], &BOTH[..]));
        assert_eq!(of(&["network.rdma.data.service_level=3"]), (&BOTH[..], &BOTH[..]));
        assert_eq!(of(&["network.rdma.metadata.gid_index=1"]), (&BOTH[..], &BOTH[..]));
        assert!(by_start(of_data(&config(&[]))).eq([Provider::Ucx, Provider::Verbs]), "what is preferred starts last");
    }

    #[test]
    fn verbs_are_preferred_then_ucx_of_one_release_and_the_reason_against_is_told() {
        let end = |verbs, ucx| End { verbs, ucx };
        let (verbs, other) = (Some(VERBS_VERSION), Some(VERBS_VERSION + 1));
        let (ucx, patched, older) = (Some("1.20.0"), Some("1.20.3"), Some("1.13.1"));
        assert_eq!(common(end(verbs, ucx), end(verbs, ucx)), Ok(Provider::Verbs));
        assert_eq!(common(end(verbs, None), end(verbs, older)), Ok(Provider::Verbs));
        assert_eq!(common(end(verbs, ucx), end(None, patched)), Ok(Provider::Ucx));
        assert_eq!(common(end(None, ucx), end(verbs, ucx)), Ok(Provider::Ucx));
        assert_eq!(common(end(verbs, ucx), end(other, ucx)), Ok(Provider::Ucx));
        let against = |here, there| common(here, there).unwrap_err();
        assert!(against(end(verbs, ucx), end(None, older)).contains("UCX 1.13.1, we run 1.20.0"));
        assert!(against(end(verbs, None), end(None, ucx)).contains("verbs alone here"));
        assert!(against(end(None, ucx), end(verbs, None)).contains("UCX alone here"));
        let both = against(end(verbs, ucx), end(other, older));
        assert!(both.contains("over verbs") && both.contains("UCX 1.13.1"), "{both}");
        assert_eq!(against(end(verbs, ucx), End::default()), OFFERS_NONE);
    }

    #[test]
    fn a_worker_is_judged_for_data_and_metadata_apart() {
        let address = || PathAddress { card: "a".into(), host: String::new(), port: 1 };
        let by_verbs = VerbsPaths { version: VERBS_VERSION, data: vec![address()], metadata: None };
        let offered = PathsReply {
            ucx: Some("1.20.0".into()),
            metadata: Some(address()),
            verbs: Some(by_verbs),
            ..PathsReply::default()
        };
        let (data, metadata) = (End::of_data(&offered), End::of_metadata(&offered));
        assert_eq!(data, End { verbs: Some(VERBS_VERSION), ucx: None });
        assert_eq!(metadata, End { verbs: None, ucx: Some("1.20.0") });
        let here = End { verbs: Some(VERBS_VERSION), ucx: Some("1.20.1") };
        assert_eq!(for_data(here, data, &offered), Ok(Provider::Verbs));
        assert_eq!(common(here, metadata), Ok(Provider::Ucx));
        let why = |here, offered: &PathsReply| for_data(here, End::of_data(offered), offered).unwrap_err();
        assert_eq!(why(here, &PathsReply::default()), OFFERS_NONE);
        assert!(why(End::default(), &offered).contains("no RDMA for data here"));
        let metadata_only = PathsReply { verbs: None, ..offered };
        assert!(why(here, &metadata_only).contains("for metadata only"));
    }
}
