//! What an old UCX may not do: make connections over its sockets, which can abort the process ([`forebay_ucx::sockets_are_sound`]).
//!
//! It makes them through `rdmacm` only. Cards of hosts that have none, EFA's, are refused by name, and data goes over Forebay's own TCP.
//! A user that names transports, as tests do, is warned.

use forebay_ucx::{Fabric, Version, sockets_are_sound};

use crate::RdmaError;

/// The setting that keeps UCX from sockets, where it is to choose the transports.
pub(crate) fn setting(version: Version, transports: &[String]) -> Option<(&'static str, &'static str)> {
    // The ways to make connections, in the order in which UCX tries them.
    (!sockets_are_sound(version) && transports.is_empty()).then_some(("SOCKADDR_TLS_PRIORITY", "rdmacm"))
}

/// Refuses what connects over sockets only.
pub(crate) fn check(fabric: Fabric, version: Version, transports: &[String]) -> Result<(), RdmaError> {
    if fabric == Fabric::Efa && setting(version, transports).is_some() {
        return Err(RdmaError::Sockets { version });
    }
    if !sockets_are_sound(version) && !transports.is_empty() {
        let transports = transports.join(",");
        tracing::warn!(
            %version,
            transports,
            "this UCX can abort the process when connections over its sockets come and go: install 1.18 or newer, or leave \
             network.rdma.data.transports to it"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version { major: 1, minor: 17, patch: 9 };
    const NEW: Version = Version { major: 1, minor: 18, patch: 0 };

    #[test]
    fn an_old_ucx_makes_no_connection_over_sockets_unless_somebody_names_the_transports() {
        assert_eq!(setting(OLD, &[]), Some(("SOCKADDR_TLS_PRIORITY", "rdmacm")));
        assert_eq!(setting(NEW, &[]), None);
        assert_eq!(setting(OLD, &["posix".to_owned()]), None);
    }

    #[test]
    fn efa_which_has_nothing_but_sockets_to_connect_by_is_refused_by_name() {
        let refused = check(Fabric::Efa, OLD, &[]).unwrap_err().to_string();
        assert!(refused.contains("1.17.9") && refused.contains("1.18"), "{refused}");
        assert!(check(Fabric::Efa, NEW, &[]).is_ok());
        assert!(check(Fabric::Events, OLD, &[]).is_ok());
    }
}
