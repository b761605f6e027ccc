//! Who may do what: the role of a key, the list of the denied, and the access lists of mounts. Pure, but for what the
//! lists are of.

use std::sync::Arc;

use forebay_identity::Identity;
use forebay_types::{AccessList, Failure, FsPath, Permission, Role};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::asked::Asked;
use crate::keyring::{Keyring, S3Key};

/// The access lists of mounts, as they are now.
pub trait AccessLists: Send + Sync {
    /// That of the mount that leads to `path`; `None`: whoever has a role that may, may.
    ///
    /// # Errors
    /// While it is not known which mounts there are.
    fn list_of(&self, path: &FsPath) -> Result<Option<Arc<AccessList>>, Failure>;
}

/// Whether a client is denied, whatever it signs.
pub type Denies = Arc<dyn Fn(&Identity) -> bool + Send + Sync>;

/// What is demanded of those who ask.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) keys: Arc<Keyring>,
    pub(crate) lists: Arc<dyn AccessLists>,
    pub(crate) denies: Denies,
    /// Whether anything may be changed.
    pub(crate) writes: bool,
}

/// Who signed a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) asked: Asked,
}

/// The access key that a request was signed with whose signature was found good, and which goes on without it.
#[derive(Clone)]
pub(crate) struct Signer(pub(crate) String);

impl Rules {
    /// The key with this name, if its owner is not denied.
    pub(crate) fn key(&self, access: &str) -> Option<Arc<S3Key>> {
        self.keys.get(access).filter(|key| !(self.denies)(&key.identity))
    }

    /// Whether `caller` may do at `path` what asks for `wish`.
    ///
    /// # Errors
    /// Why not, as the client is told.
    pub(crate) fn permit(&self, caller: &Caller, path: &FsPath, wish: Permission) -> S3Result<()> {
        caller.asked.about(path, wish);
        let list = self.lists.list_of(path).map_err(|failure| crate::failure::told(&failure))?;
        let why = if wish == Permission::Write && !self.writes {
            Some("nothing may be changed here: `write.mode=none`".to_owned())
        } else {
            refusal(&caller.identity, path, wish, list.as_deref())
        };
        let Some(why) = why else { return Ok(()) };
        caller.asked.refused(&why);
        Err(S3Error::with_message(S3ErrorCode::AccessDenied, why))
    }

    /// Whether it may read at `path`; nothing is noted of it.
    pub(crate) fn shows(&self, identity: &Identity, path: &FsPath) -> bool {
        let list = self.lists.list_of(path);
        list.is_ok_and(|list| refusal(identity, path, Permission::Read, list.as_deref()).is_none())
    }
}

/// Why a client may not do at `path` what asks for `wish`; `None`: it may.
fn refusal(identity: &Identity, path: &FsPath, wish: Permission, list: Option<&AccessList>) -> Option<String> {
    let (role, name) = (identity.role(), identity.name());
    if !role.may(wish) {
        return Some(format!("a {role} may not {wish}; sign with a key of a role that may"));
    }
    let is_listed = match (list, wish) {
        (None, _) => true,
        // Admins command the cluster, and pass every list.
        _ if role == Role::Admin => true,
        (Some(list), Permission::Read) => list.may_read(name),
        (Some(list), Permission::Write) => list.may_write(name),
        (Some(_), _) => false,
    };
    (!is_listed).then(|| {
        format!(
            "{name} may not {wish} {path}: the access list of the mount there does not name it; an admin gives the \
             mount a list that does"
        )
    })
}

#[async_trait::async_trait]
impl S3Auth for Rules {
    async fn get_secret_key(&self, access: &str) -> S3Result<SecretKey> {
        let unknown = || S3Error::with_message(S3ErrorCode::InvalidAccessKeyId, "there is no such access key here");
        self.key(access).map(|key| SecretKey::from(key.secret.as_str())).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use forebay_identity::Scope;

    use super::*;

    fn may(role: Role, name: &str, wish: Permission, list: Option<&AccessList>) -> bool {
        let identity = Scope::new("forebay", "prod").unwrap().identity(role, name).unwrap();
        refusal(&identity, &FsPath::new("/b/k").unwrap(), wish, list).is_none()
    }

    #[test]
    fn a_role_and_an_access_list_both_have_to_let_a_client_in() {
        use Permission::{Administer, Read, Write};
        let list = AccessList::new(&["team-a"], &["loader"]).unwrap();
        for (role, name, wish, with_list, is_in) in [
            (Role::Reader, "team-b", Read, false, true),
            (Role::Reader, "team-b", Read, true, false),
            (Role::Reader, "team-a", Read, true, true),
            (Role::Reader, "loader", Write, true, false),
            (Role::Reader, "loader", Write, false, false),
            (Role::Writer, "loader", Write, true, true),
            (Role::Writer, "loader", Read, true, true),
            (Role::Writer, "team-a", Write, true, false),
            (Role::Writer, "team-b", Write, false, true),
            (Role::Admin, "root", Write, true, true),
            (Role::Writer, "loader", Administer, true, false),
        ] {
            let list = with_list.then_some(&list);
            assert_eq!(may(role, name, wish, list), is_in, "{role} {name} {wish} {with_list}");
        }
    }

    #[test]
    fn who_is_refused_is_told_by_what() {
        let identity = Scope::new("forebay", "prod").unwrap().identity(Role::Reader, "team-b").unwrap();
        let path = FsPath::new("/b/k").unwrap();
        let nobody = AccessList::default();
        let told = |wish, list| refusal(&identity, &path, wish, list).unwrap();
        assert!(told(Permission::Write, None).contains("a reader may not write"));
        let by_list = told(Permission::Read, Some(&nobody));
        assert!(by_list.contains("team-b may not read /b/k") && by_list.contains("access list"), "{by_list}");
    }
}
