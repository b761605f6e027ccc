//! Who this process is to others over TCP, RDMA, shared memory and HTTP, as `security.*` says.
//!
//! Each part of a process that listens or connects has an identity of its own: a worker is one towards its clients and towards
//! other workers, and the mount beside it reads as a client does. The files are looked at every few seconds, for as long as
//! there is the [`Security`] that was made of them: whoever makes one keeps it while it listens or connects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_cluster::Member;
use forebay_config::{Config, Host, SecurityMode, WriteMode};
use forebay_identity::{
    AuthoritySource, Identity, LiveIdentity, LiveTokens, Passes, Reload, Scope, Settings, Source, TokenFile, Watch,
    http_client_config,
};
use forebay_locks::Mutex;
use forebay_metrics::Access;
use forebay_tcp::{ClientOptions, ClientSecurity, ServerSecurity};
use forebay_types::Role;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{error, info};

use crate::error::{Exit, Fault};
use crate::reloading::{self, LOOK_EVERY};

/// How long a certificate lasts that a process makes for itself.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Longest name of an identity.
const MAX_NAME: usize = 64;
/// Addresses of this machine that a certificate names at most: it goes over the network in each handshake.
const MAX_ADDRESSES: usize = 32;

/// The identity of a part of this process. What was made of it is renewed as long as it lives.
pub struct Security {
    live: Arc<LiveIdentity>,
    server: ServerSecurity,
    /// `None`: it demands something of those who connect, and proves nothing to those that it connects to.
    client: Option<ClientSecurity>,
    /// The same for the memory of workers on this machine.
    window_server: forebay_shm::ServerSecurity,
    window_client: Option<forebay_shm::ClientSecurity>,
    accepts_plain: bool,
    /// Whom it has admitted over TCP to come over RDMA.
    passes: Arc<Mutex<Passes>>,
    /// The tasks that look at the files. They are aborted with it.
    looking: Mutex<JoinSet<()>>,
}

/// What a cluster goes by: one mode, or several while it goes from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Modes {
    /// The one of which this process has its identity.
    proves: SecurityMode,
    /// Whether who connects may prove nothing.
    accepts_plain: bool,
    /// Whether the authorities of the other one are believed, too.
    believes_both: bool,
}

impl Modes {
    /// `None`: nobody proves anything.
    fn of(config: &Config) -> Result<Option<Self>, Fault> {
        let (mode, accept) = (config.security_mode, &config.security_accept);
        if !accept.is_empty() && !accept.contains(&mode) {
            let what = format!("`security.accept` does not have `{}`, which `security.mode` is", mode.as_str());
            let next = "list in it what is being left and what is being gone over to, as in `[\"off\", \"key\"]`; in the \
                        end, remove it";
            return Err(Fault::new(Exit::Usage, what, next));
        }
        let accepts = |mode| accept.contains(&mode);
        let other = accept.iter().copied().find(|mode| *mode != SecurityMode::Off);
        let proves = if mode == SecurityMode::Off { other } else { Some(mode) };
        if proves.is_none() && !token_files(config).is_empty() {
            let what = "tokens are set, and with `security.mode=off` nobody has to show one";
            let next = "set `security.mode`, or remove `security.token_file` and `security.metrics_token_file`";
            return Err(Fault::new(Exit::Usage, what, next));
        }
        let named = config.cluster_workers.iter().find(|worker| worker.name.is_some());
        if let (None, Some(worker)) = (proves, named) {
            let what = format!(
                "`cluster.workers` has a name in `{worker}`, and with `security.mode=off` no worker proves its name"
            );
            let next = "set `security.mode`, or list the address alone";
            return Err(Fault::new(Exit::Usage, what, next));
        }
        Ok(proves.map(|proves| Self {
            proves,
            accepts_plain: accepts(SecurityMode::Off),
            believes_both: accepts(SecurityMode::Key) && accepts(SecurityMode::Mtls),
        }))
    }

    fn settings(self, config: &Config, role: Role, name: &str) -> Result<Settings, Fault> {
        let (key_file, authorities) = (config.security_key_file.clone(), config.security_ca_file.clone());
        let (source, also) = if self.proves == SecurityMode::Mtls {
            let certificate = config.security_cert_file.clone();
            let key = config.security_cert_key_file.clone();
            (Source::Files { certificate, key, authorities }, AuthoritySource::Key(key_file))
        } else {
            let (name, hosts) = (name_of(name), hosts(config));
            let source = Source::Key { file: key_file, role, name, hosts, lifetime: LIFETIME };
            (source, AuthoritySource::Files(authorities))
        };
        let scope = scope(config)?;
        let also = self.believes_both.then_some(also);
        Ok(Settings { scope, source, also, denied: config.security_denied_file.clone() })
    }
}

impl Security {
    /// The identity of a part with this role and name, if `security.mode` or `security.accept` want one. With certificates of
    /// others, role and name are what these say. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When it cannot be had: a process that should prove who it is does not start without.
    pub fn open(config: &Config, role: Role, name: &str) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(modes) = Modes::of(config)? else { return Ok(None) };
        let settings = modes.settings(config, role, name)?;
        let (watch, material) = Watch::begin(settings, SystemTime::now()).map_err(unusable)?;
        info!(identity = %material.identity(), mode = config.security_mode.as_str(), "identity loaded");
        let live = LiveIdentity::new(material);
        let server = ServerSecurity::new(&live, config.network_tcp_security).map_err(unusable)?;
        let server = if modes.accepts_plain { server.accepting_plain() } else { server };
        let client = ClientSecurity::to_worker(&live, config.network_tcp_security).map_err(unusable)?;
        let proves = config.security_mode != SecurityMode::Off;
        let client = Some(client).filter(|_| proves);
        let window_server = forebay_shm::ServerSecurity::new(&live).map_err(unusable)?;
        let window_server = if modes.accepts_plain { window_server.accepting_plain() } else { window_server };
        let window_client = forebay_shm::ClientSecurity::to_worker(&live).map_err(unusable)?;
        let window_client = Some(window_client).filter(|_| proves);
        let mut looking = JoinSet::new();
        looking.spawn(look_after(watch, Arc::clone(&live)));
        Ok(Some(Arc::new(Self {
            live,
            server,
            client,
            window_server,
            window_client,
            accepts_plain: modes.accepts_plain,
            passes: Arc::default(),
            looking: Mutex::new(looking),
        })))
    }

    /// That of a client of the workers: of a mount, or of a command.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_client(config: &Config, mounts: bool) -> anyhow::Result<Option<Arc<Self>>> {
        Self::open(config, role_of_client(config, mounts), &machine())
    }

    /// Its name among those of its role, which stays as long as the process does.
    pub(crate) fn name(&self) -> String {
        self.live.material().identity().name().to_owned()
    }

    /// Who it is, and until when that is believed, for `forebay stats` and `/metrics`.
    pub(crate) fn report(&self) -> Value {
        let material = self.live.material();
        let left = material.until().duration_since(SystemTime::now()).unwrap_or_default();
        json!({ "identity": material.identity().to_string(), "certificate_expires_seconds": left.as_secs() })
    }

    /// What a server demands.
    pub fn server(&self) -> ServerSecurity {
        self.server.clone()
    }

    /// Where the passes wait that a server over TCP gives for connections over RDMA.
    pub(crate) fn passes(&self) -> Arc<Mutex<Passes>> {
        Arc::clone(&self.passes)
    }

    /// What a server over RDMA demands.
    pub(crate) fn rdma_server(&self) -> forebay_rdma::ServerSecurity {
        let (live, passes) = (Arc::clone(&self.live), self.passes());
        forebay_rdma::ServerSecurity { live, passes, accepts_plain: self.accepts_plain }
    }

    /// What a client proves and demands, if it does.
    pub fn client(&self) -> Option<ClientSecurity> {
        self.client.clone()
    }

    /// What a worker demands of those who want to see its memory.
    pub(crate) fn window_server(&self) -> forebay_shm::ServerSecurity {
        self.window_server.clone()
    }

    /// What a client proves and demands that wants to see the memory of a worker, if it does.
    pub(crate) fn window_client(&self) -> Option<forebay_shm::ClientSecurity> {
        self.window_client.clone()
    }

    /// What one proves who asks an HTTP listener of this cluster, and demands: one of the role `expects`, or, without, of any. `None`:
    /// plain text.
    ///
    /// # Errors
    /// None that a sound build has.
    pub fn http_client(&self, expects: Option<Role>) -> Result<Option<ClientConfig>, Fault> {
        let config = self.client.is_some().then(|| http_client_config(&self.live, expects));
        config.transpose().map_err(unusable)
    }

    /// What an HTTP listener demands: a certificate, or one of the tokens.
    fn access(&self, config: &Config) -> Result<Access, Fault> {
        let tokens = LiveTokens::open(token_files(config)).map_err(unusable)?;
        let access = Access::proved(&self.live, Arc::clone(&tokens), self.accepts_plain).map_err(unusable)?;
        self.looking.lock().spawn(reloading::look_after("tokens", move || tokens.look()));
        Ok(access)
    }

    /// What a listener demands whose requests are signed: TLS, and nothing else.
    ///
    /// # Errors
    /// None that a sound build has.
    pub(crate) fn tls(&self) -> Result<Access, Fault> {
        let no_tokens = LiveTokens::open(Vec::new()).map_err(unusable)?;
        Access::proved(&self.live, no_tokens, self.accepts_plain).map_err(unusable)
    }

    /// Whether a client is denied at this moment, whatever it shows.
    pub(crate) fn denies(&self) -> impl Fn(&Identity) -> bool + Send + Sync + 'static {
        let live = Arc::clone(&self.live);
        move |identity| live.material().trust().denies(identity)
    }

    /// Ends the looking at its files: what they say stays as it is. A look that waits for a disk is not waited for.
    pub async fn close(&self) {
        let mut looking = std::mem::take(&mut *self.looking.lock());
        looking.shutdown().await;
    }
}

/// What an HTTP listener of a part with this identity demands.
///
/// # Errors
/// When tokens are to be taken, and their files cannot be used.
pub(crate) fn access(config: &Config, security: Option<&Security>) -> Result<Access, Fault> {
    security.map_or_else(|| Ok(Access::everybody()), |security| security.access(config))
}

/// The cluster that identities are of.
///
/// # Errors
/// When its names cannot be in an identity.
pub(crate) fn scope(config: &Config) -> Result<Scope, Fault> {
    Scope::new(&config.security_trust_domain, config.cluster_name.as_str()).map_err(|error| {
        let next =
            "where clients have identities, `cluster.name` and `security.trust_domain` are parts of them: rename them";
        Fault::new(Exit::Usage, error.to_string(), next)
    })
}

fn token_files(config: &Config) -> Vec<TokenFile> {
    let of = |path: &Option<std::path::PathBuf>, role| path.clone().map(|path| TokenFile { path, role });
    let (admin, metrics) = (&config.security_token_file, &config.security_metrics_token_file);
    [of(admin, Role::Admin), of(metrics, Role::Metrics)].into_iter().flatten().collect()
}

/// What is wrong with a file is said with its remedy.
fn unusable(error: impl std::fmt::Display) -> Fault {
    Fault::without_remedy(Exit::Usage, error.to_string())
}

/// Where a part with this role and name has its identity from, if it has one. With certificates of others, role and name are
/// what these say.
///
/// # Errors
/// When the keys of `security.*` do not fit together, or `cluster.name` or `security.trust_domain` cannot be in an identity.
pub fn settings(config: &Config, role: Role, name: &str) -> Result<Option<Settings>, Fault> {
    Modes::of(config)?.map(|modes| modes.settings(config, role, name)).transpose()
}

/// `options` for connections to this member: it has to be who the cluster says it is, where that says so.
pub(crate) fn options_for(options: &ClientOptions, member: &Member) -> ClientOptions {
    let named = |security: &ClientSecurity| match &member.identity {
        Some(name) => security.named(name.as_ref()),
        None => security.clone(),
    };
    ClientOptions { security: options.security.as_ref().map(named), ..options.clone() }
}

/// The same for its memory, if it is on this machine.
pub(crate) fn window_options_for(options: &forebay_shm::ClientOptions, member: &Member) -> forebay_shm::ClientOptions {
    let named = |security: &forebay_shm::ClientSecurity| match &member.identity {
        Some(name) => security.named(name.as_ref()),
        None => security.clone(),
    };
    forebay_shm::ClientOptions { security: options.security.as_ref().map(named), ..options.clone() }
}

/// The role that a client of the workers takes: a mount, or a command.
pub fn role_of_client(config: &Config, mounts: bool) -> Role {
    match (mounts, config.write_mode) {
        (false, _) => Role::Admin,
        (true, WriteMode::None) => Role::Reader,
        (true, _) => Role::Writer,
    }
}

/// This machine, as its certificates name it.
pub fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The names and addresses at which programs of others may look for this machine.
fn hosts(config: &Config) -> Vec<String> {
    let configured = [&config.worker_hostname, &config.coordinator_hostname].into_iter().flatten();
    let configured = configured.chain(&config.network_http_hosts).map(Host::as_str);
    let own = ["localhost".to_owned(), machine()];
    let is_plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    let names = configured.map(str::to_owned).chain(own).filter(|name| !name.is_empty() && is_plain(name));
    // Which of its interfaces one of the link is, an address does not say.
    let is_of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let addresses: BTreeSet<_> = interfaces.iter().map(if_addrs::Interface::ip).filter(|ip| !is_of_link(ip)).collect();
    let addresses = addresses.iter().take(MAX_ADDRESSES).map(ToString::to_string);
    names.chain(addresses).collect::<BTreeSet<_>>().into_iter().collect()
}

/// `text` with what cannot be in an identity replaced.
fn name_of(text: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    let name: String = text.chars().take(MAX_NAME).map(|letter| if fits(letter) { letter } else { '-' }).collect();
    if name.chars().all(|letter| letter == '.') { "unnamed".to_owned() } else { name }
}

/// Looks at the files of an identity until it is aborted.
async fn look_after(mut watch: Watch, live: Arc<LiveIdentity>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // A disk, or a server of files, may be slow.
        let looking = tokio::task::spawn_blocking(move || {
            let looked = watch.look(SystemTime::now());
            let denied = watch.denied();
            (watch, looked, denied)
        });
        // It ends without an answer only with its runtime, or when a look panicked, which has been told.
        let Ok((back, looked, denied)) = looking.await else { return };
        watch = back;
        match looked {
            Reload::Unchanged => {}
            Reload::New(material) => {
                let (identity, authorities) = (material.identity().clone(), material.trust().authorities());
                live.replace(*material);
                info!(%identity, authorities, "certificates or denied identities changed, and are in use");
            }
            Reload::Refused(reason) => {
                error!(%reason, "certificates or denied identities cannot be reloaded: the previous ones stay in use")
            }
        }
        if denied.is_some_and(|denied| live.deny(denied)) {
            info!("denied identities changed, and are in use; certificates are as they were");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use forebay_config::Sources;
    use forebay_identity::ClusterKey;

    use super::*;

    #[tokio::test]
    async fn nothing_looks_at_its_files_any_more_once_it_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cluster.key");
        std::fs::write(&file, &*ClusterKey::generate().unwrap().to_pem()).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let config = Config { security_mode: SecurityMode::Key, security_key_file: file, ..Config::default() };
        let security = Security::open(&config, Role::Worker, "node1").unwrap().unwrap();
        drop(security.access(&config).unwrap());
        assert_eq!(security.looking.lock().len(), 2, "that of the identity, and that of the tokens of a listener");
        security.close().await;
        let live = Arc::downgrade(&security.live);
        drop(security);
        assert_eq!(live.strong_count(), 0);
    }

    #[test]
    fn a_cluster_goes_from_one_mode_to_another_in_steps() {
        use SecurityMode::{Key, Mtls, Off};
        let of_config = |mode, accept: &[SecurityMode]| {
            let accept = accept.to_vec();
            Modes::of(&Config { security_mode: mode, security_accept: accept, ..Config::default() })
        };
        let modes = |mode, accept: &[_]| of_config(mode, accept).unwrap();
        let of = |proves, accepts_plain, believes_both| Some(Modes { proves, accepts_plain, believes_both });
        assert_eq!(modes(Off, &[]), None);
        assert_eq!(modes(Off, &[Off]), None);
        assert_eq!(modes(Key, &[]), of(Key, false, false));
        assert_eq!(modes(Off, &[Off, Key]), of(Key, true, false));
        assert_eq!(modes(Key, &[Off, Key]), of(Key, true, false));
        assert_eq!(modes(Key, &[Key, Mtls]), of(Key, false, true));
        assert_eq!(modes(Mtls, &[Key, Mtls]), of(Mtls, false, true));
        assert!(of_config(Key, &[Off]).is_err() && of_config(Off, &[Key]).is_err());
    }

    #[test]
    fn tokens_that_nobody_asks_for_are_refused() {
        let with = |mode, token: Option<&str>, metrics: Option<&str>| {
            let (security_token_file, security_metrics_token_file) = (token.map(Into::into), metrics.map(Into::into));
            Config { security_mode: mode, security_token_file, security_metrics_token_file, ..Config::default() }
        };
        for config in [with(SecurityMode::Off, Some("/t"), None), with(SecurityMode::Off, None, Some("/t"))] {
            assert!(Modes::of(&config).unwrap_err().to_string().contains("tokens are set"));
        }
        let both = with(SecurityMode::Key, Some("/a"), Some("/m"));
        assert!(Modes::of(&both).is_ok());
        let roles: Vec<_> = token_files(&both).iter().map(|file| file.role).collect();
        assert_eq!(roles, [Role::Admin, Role::Metrics]);
    }

    #[test]
    fn a_name_of_a_worker_that_nobody_proves_is_refused() {
        let of = |settings: &[&str]| {
            let named = ["cluster.workers=node1:1,w2=node2:1"];
            Modes::of(&Config::load(&Sources::new().flags([&named[..], settings].concat())).unwrap().config)
        };
        let refused = of(&["security.mode=off"]).unwrap_err().to_string();
        assert!(refused.contains("`w2=node2:1`"), "{refused}");
        assert!(of(&["security.mode=key"]).is_ok());
        assert!(of(&["security.accept=off,key"]).is_ok(), "the list may be there before the mode is");
    }

    #[test]
    fn a_certificate_names_this_machine_as_others_look_for_it() {
        let hosts = hosts(&Config::default());
        assert!(["localhost", "127.0.0.1"].iter().all(|own| hosts.iter().any(|host| host == own)), "{hosts:?}");
        assert!(!hosts.iter().any(|host| host.starts_with("fe80")), "{hosts:?}");
    }

    #[test]
    fn a_name_has_what_an_identity_may_have() {
        assert_eq!(name_of("node7:29999"), "node7-29999");
        assert_eq!(name_of("[fe80::1]:29999"), "-fe80--1--29999");
        assert_eq!(name_of(""), "unnamed");
        assert_eq!(name_of("…"), "-");
        assert_eq!(name_of(&"n".repeat(100)).len(), MAX_NAME);
    }
}
