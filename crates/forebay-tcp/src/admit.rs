//! Passes for connections that prove nothing themselves ([`forebay_identity::Passes`]): given over one on which somebody did.

use std::time::Instant;

use bytes::Bytes;
use forebay_identity::{Pass, PassError, Passes, Peer};
use forebay_locks::Mutex;
use forebay_transport::Response;
use forebay_types::{Failure, FailureKind};

/// A pass for `peer`, who asks with `body`, the client id that it is going to connect with.
///
/// # Errors
/// When nobody needs a pass here, or `peer` proved nothing; when `body` is no client id, or too many passes wait.
pub(crate) fn admit(passes: Option<&Mutex<Passes>>, peer: Option<Peer>, body: &[u8]) -> Result<Response, Failure> {
    let (Some(passes), Some(peer)) = (passes, peer) else {
        return Err(Failure::new(FailureKind::Unsupported, "this worker has no passes for who proves nothing"));
    };
    let Ok(client_id) = body.try_into().map(u64::from_le_bytes) else {
        let message = format!("a client id has 8 bytes, and not {}", body.len());
        return Err(Failure::new(FailureKind::InvalidArgument, message));
    };
    let pass = Pass::random().map_err(refused)?;
    passes.lock().issue(client_id, pass, peer, Instant::now()).map_err(refused)?;
    Ok(Response::of_body(Bytes::copy_from_slice(&pass.encode())))
}

fn refused(error: PassError) -> Failure {
    let kind = match error {
        PassError::ClientId => FailureKind::InvalidArgument,
        PassError::Random | PassError::Full(_) | PassError::FullOfOne(_) => FailureKind::OutOfResources,
    };
    Failure::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use forebay_identity::Scope;
    use forebay_types::Role;

    use super::*;

    #[test]
    fn a_pass_is_for_who_proved_something_and_for_one_client_id() {
        let passes = Mutex::<Passes>::default();
        let identity = Scope::new("example.org", "prod").unwrap().identity(Role::Reader, "team-a").unwrap();
        let peer = Peer { identity, until: SystemTime::UNIX_EPOCH, authority: None };
        let id = 7_u64.to_le_bytes();
        let kind = |passes, peer, body: &[u8]| admit(passes, peer, body).unwrap_err().kind();
        assert_eq!(kind(Some(&passes), None, &id), FailureKind::Unsupported);
        assert_eq!(kind(None, Some(peer.clone()), &id), FailureKind::Unsupported);
        for body in [&id[..0], &id[..7], &[0; 9][..], &[0; 8][..]] {
            assert_eq!(kind(Some(&passes), Some(peer.clone()), body), FailureKind::InvalidArgument, "{body:?}");
        }
        let given = admit(Some(&passes), Some(peer.clone()), &id).unwrap();
        let pass = Pass::decode(&given.body).unwrap();
        assert!(passes.lock().arrive(7, Instant::now()));
        assert_eq!(passes.lock().redeem(7, pass.client, Instant::now()), Some((pass, peer)));
    }
}
