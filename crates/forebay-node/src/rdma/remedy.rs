//! What to do about RDMA that cannot be had, by what stands in its way.

use forebay_rdma::verbs::VerbsError;
use forebay_rdma::{RdmaError, UcxError};

use crate::error::UserError;

/// What to do next. What its own error says comes first; then `forebay doctor`, which looks at all that RDMA needs.
pub(super) fn of(error: &anyhow::Error) -> String {
    let doctor = "`forebay doctor` with the same options looks at cards, links, libraries and limits";
    first(error).map_or_else(|| doctor.to_owned(), |first| format!("{first}; {doctor}"))
}

/// What its own error says, if it says anything.
pub(super) fn first(error: &anyhow::Error) -> Option<String> {
    UserError::from(error).next.or_else(|| error.chain().find_map(|cause| by_cause(cause).map(str::to_owned)))
}

fn by_cause(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let ucx = match cause.downcast_ref::<RdmaError>() {
        Some(RdmaError::Ucx(ucx) | RdmaError::Listen { reason: ucx, .. }) => ucx,
        Some(RdmaError::Verbs(verbs)) => return by_verbs(verbs),
        Some(RdmaError::ListenByVerbs { .. }) => {
            return Some(
                "end what has the port (`rdma resource show cm_id`), or set network.rdma.data.port = 0 for a free one",
            );
        }
        Some(RdmaError::Thread(_)) => return Some("see that the limit of threads is not reached (`ulimit -u`)"),
        _ => cause.downcast_ref::<UcxError>()?,
    };
    Some(match ucx {
        UcxError::Load(_) | UcxError::OtherLibrary { .. } => {
            "install UCX (`apt-get install libucx0`, `dnf install ucx`), or name its library as ucx.library"
        }
        UcxError::UnknownOption { .. } | UcxError::InvalidOption { .. } => {
            "leave the setting that stands for this option to UCX, or install a UCX that has it: network.rdma.data.gid_index, \
             service_level, traffic_class, partition_key, and variables of the environment that begin with UCX_"
        }
        UcxError::LockedMemory { .. } | UcxError::Register { .. } => {
            "let the process lock memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in its systemd unit"
        }
        UcxError::PortBusy { .. } => {
            "end what has the port (`ss -tlnp`, `rdma resource show cm_id`), or set network.rdma.data.port = 0 for a free one"
        }
        UcxError::Listen { .. } => {
            "give the card's interface an IP address, or name one that has it as network.rdma.data.bind.host"
        }
        UcxError::Context { .. } => "see that the card is there and its link up: `rdma link`",
        _ => return None,
    })
}

fn by_verbs(error: &VerbsError) -> Option<&'static str> {
    Some(match error {
        VerbsError::Library { .. } => {
            "install libibverbs and librdmacm (`apt-get install ibverbs-providers librdmacm1`, `dnf install libibverbs librdmacm`), \
             or set network.rdma.data.provider = \"ucx\""
        }
        VerbsError::NoDevice { .. } => "see that the card is there and its link up: `rdma link`",
        VerbsError::Register { .. } => {
            "let the process lock memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in its systemd unit"
        }
        VerbsError::Address { .. } => {
            "give the card's interface an IP address, or name one that has it as network.rdma.data.bind.host"
        }
        VerbsError::Refused { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Exit, Fault};
    use anyhow::Context as _;
    use std::time::Duration;

    #[test]
    fn what_to_do_depends_on_what_stands_in_the_way_and_doctor_is_always_named() {
        let address = "127.0.0.1:59999".parse().unwrap();
        let busy = RdmaError::Listen { address, waited: Duration::ZERO, reason: UcxError::PortBusy { address } };
        let option = UcxError::InvalidOption { key: "IB_SL".into(), value: "3".into() };
        let device = RdmaError::Verbs(VerbsError::NoDevice { name: "siw0".to_owned(), found: "none".to_owned() });
        let library = VerbsError::Library { library: "librdmacm.so.1", reason: "no such file".to_owned() };
        let cases = [
            (anyhow::Error::new(device).context("card siw0"), "`rdma link`"),
            (anyhow::Error::new(RdmaError::Verbs(library)), "librdmacm1"),
            (anyhow::Error::new(busy).context("network.rdma.data.port"), "network.rdma.data.port = 0"),
            (anyhow::Error::new(RdmaError::Ucx(option)).context("card mlx5_0:1"), "service_level"),
            (Fault::new(Exit::Usage, "no such card", "name one that is there").into(), "name one that is there"),
            (Err::<(), _>(RdmaError::Thread("limit".into())).context("card any").unwrap_err(), "ulimit -u"),
            (anyhow::anyhow!("something else"), "forebay doctor"),
        ];
        for (error, expected) in cases {
            let remedy = of(&error);
            assert!(remedy.contains(expected) && remedy.contains("`forebay doctor`"), "{error:#}: {remedy}");
        }
    }
}
