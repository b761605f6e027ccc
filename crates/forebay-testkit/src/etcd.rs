//! A real etcd: one member or several, each a process of its own that can be killed, paused and started again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use etcd_client::{
    Certificate, Client, CompactionOptions, ConnectOptions, Identity, Permission, PermissionType, TlsOptions,
};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::{Authority, ReservedPort};

/// How long the members may take until all of them serve.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// What kind of etcd to start.
#[derive(Clone, Debug)]
pub struct EtcdSetup {
    /// How many members.
    pub members: usize,
    /// Whether clients need TLS and a certificate signed by [`Etcd::ca_file`].
    pub tls: bool,
}

impl Default for EtcdSetup {
    fn default() -> Self {
        Self { members: 1, tls: false }
    }
}

/// A running etcd, with directories of its own; its members end when it is dropped.
pub struct Etcd {
    members: Vec<Member>,
    tls: Option<Tls>,
    /// All ports that members serve at: no other process gets one of them while its member is away.
    ports: Vec<ReservedPort>,
    _directory: TempDir,
}

struct Member {
    /// All but where it serves clients.
    command: Command,
    child: Option<Child>,
    client: SocketAddr,
    serves_at: SocketAddr,
    health: SocketAddr,
    log: PathBuf,
}

struct Tls {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    authority: Authority,
}

impl Etcd {
    /// Starts the members and waits until all serve; `None`, with the reason on standard error, where etcd is not
    /// installed.
    ///
    /// # Errors
    /// When they do not serve.
    pub fn start(setup: &EtcdSetup) -> anyhow::Result<Option<Self>> {
        let Some(binary) = find() else {
            crate::skipped("etcd is not installed (apt-get install etcd-server)");
            return Ok(None);
        };
        Self::start_members(&binary, setup).map(Some)
    }

    fn start_members(binary: &Path, setup: &EtcdSetup) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let tls = if setup.tls { Some(Tls::generate(directory.path())?) } else { None };
        let ports = (0..setup.members * 3).map(|_| ReservedPort::new()).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<SocketAddr> = ports.iter().map(ReservedPort::address).collect();
        let addresses: Vec<&[SocketAddr]> = addresses.chunks(3).collect();
        let names: Vec<String> = addresses
            .iter()
            .enumerate()
            .map(|(number, addresses)| format!("m{number}=http://{}", addresses[1]))
            .collect();
        let members = addresses
            .iter()
            .enumerate()
            .map(|(number, addresses)| {
                let (client, peer, health) = (addresses[0], addresses[1], addresses[2]);
                let mut command = Command::new(binary);
                command
                    .env_clear()
                    // On a machine that etcd does not support, it starts only if this names the architecture.
                    .env("ETCD_UNSUPPORTED_ARCH", if cfg!(target_arch = "aarch64") { "arm64" } else { "" })
                    .args(["--name", &format!("m{number}"), "--logger", "zap", "--log-level", "warn"])
                    .arg("--data-dir")
                    .arg(directory.path().join(format!("m{number}")))
                    .args(["--listen-peer-urls", &format!("http://{peer}")])
                    .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
                    .args(["--listen-metrics-urls", &format!("http://{health}")])
                    .args(["--initial-cluster", &names.join(","), "--initial-cluster-state", "new"])
                    // Leases of one second, and elections soon enough for a test.
                    .args(["--heartbeat-interval", "100", "--election-timeout", "600"]);
                if let Some(tls) = &tls {
                    command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
                    command.arg("--cert-file").arg(&tls.certificate).arg("--key-file").arg(&tls.key);
                }
                let log = directory.path().join(format!("m{number}.log"));
                Member { command, child: None, client, serves_at: client, health, log }
            })
            .collect();
        let mut etcd = Self { members, tls, ports, _directory: directory };
        for member in 0..setup.members {
            etcd.spawn(member)?;
        }
        for member in 0..setup.members {
            etcd.wait(member)?;
        }
        Ok(etcd)
    }

    /// Client URLs of all members.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| self.client_url(member)).collect()
    }

    /// The PEM file of the authority that signed the members' certificates; `None` without TLS.
    #[must_use]
    pub fn ca_file(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| tls.ca.as_path())
    }

    /// The authority that signed the members' certificates, and whose certificates clients may use; `None` without TLS.
    #[must_use]
    pub fn authority(&self) -> Option<&Authority> {
        self.tls.as_ref().map(|tls| &tls.authority)
    }

    /// PEM files of a certificate that clients may use, and its key; `None` without TLS.
    #[must_use]
    pub fn identity_files(&self) -> Option<(&Path, &Path)> {
        self.tls.as_ref().map(|tls| (tls.certificate.as_path(), tls.key.as_path()))
    }

    /// Kills a member as a power cut would.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self, member: usize) -> anyhow::Result<()> {
        if let Some(mut child) = self.members[member].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts a member that was killed, with the data it had, and waits until it serves.
    ///
    /// # Errors
    /// When it does not.
    pub fn restart(&mut self, member: usize) -> anyhow::Result<()> {
        self.kill(member)?;
        self.members[member].serves_at = self.members[member].client;
        self.spawn(member)?;
        self.wait(member)
    }

    /// Starts the only member with the data it had at a port that no client knows: clients that used it before do not
    /// find it until [`Etcd::restart`], which brings it back to where it was.
    ///
    /// # Errors
    /// When it does not serve.
    pub fn restart_apart(&mut self, member: usize) -> anyhow::Result<()> {
        self.kill(member)?;
        let apart = ReservedPort::new()?;
        self.members[member].serves_at = apart.address();
        self.ports.push(apart);
        self.spawn(member)?;
        self.wait(member)
    }

    /// A member stops answering, and its connections stay open.
    ///
    /// # Errors
    /// When it does not run, or does not stop.
    pub fn pause(&self, member: usize) -> anyhow::Result<()> {
        let child = self.members[member].child.as_ref().context("the member does not run")?;
        crate::stop_process(child.id())
    }

    /// A paused member goes on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, member: usize) -> anyhow::Result<()> {
        self.signal(member, Signal::CONT)
    }

    /// A client of all members, for what a test does behind the back of what it tests.
    ///
    /// # Errors
    /// When no member can be reached.
    pub async fn client(&self, user: Option<(&str, &str)>) -> anyhow::Result<Client> {
        let mut options = ConnectOptions::new();
        if let Some((name, password)) = user {
            options = options.with_user(name, password);
        }
        if let Some(tls) = &self.tls {
            let identity = Identity::from_pem(std::fs::read(&tls.certificate)?, std::fs::read(&tls.key)?);
            let ca = Certificate::from_pem(std::fs::read(&tls.ca)?);
            options = options.with_tls(TlsOptions::new().ca_certificate(ca).identity(identity));
        }
        Ok(Client::connect(self.endpoints(), Some(options)).await?)
    }

    /// Forgets all history before now.
    ///
    /// # Errors
    /// When no member can be reached.
    pub async fn compact(&self) -> anyhow::Result<()> {
        let mut client = self.client(None).await?;
        let answer = client.get("now", None).await?;
        let revision = answer.header().context("an answer without a header")?.revision();
        client.compact(revision, Some(CompactionOptions::new().with_physical())).await?;
        Ok(())
    }

    /// Makes a user who may do everything below `prefix`, a `root` user with the password `root`, and asks for users and
    /// passwords from now on.
    ///
    /// # Errors
    /// When no member can be reached.
    pub async fn enable_users(&self, name: &str, password: &str, prefix: &str) -> anyhow::Result<()> {
        let mut client = self.client(None).await?;
        client.user_add("root", "root", None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        client.user_add(name, password, None).await?;
        client.role_add("below").await?;
        let permission = Permission::new(PermissionType::Readwrite, prefix).with_prefix();
        client.role_grant_permission("below", permission).await?;
        client.user_grant_role(name, "below").await?;
        client.auth_enable().await?;
        Ok(())
    }

    fn client_url(&self, member: &Member) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, member.serves_at)
    }

    fn signal(&self, member: usize, signal: Signal) -> anyhow::Result<()> {
        let child = self.members[member].child.as_ref().context("the member does not run")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    fn spawn(&mut self, member: usize) -> anyhow::Result<()> {
        let url = self.client_url(&self.members[member]);
        let member = &mut self.members[member];
        let log = std::fs::File::options().create(true).append(true).open(&member.log)?;
        // etcd takes the last of several.
        member.command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        member.command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        member.child = Some(member.command.spawn().context("cannot start etcd")?);
        Ok(())
    }

    fn wait(&mut self, member: usize) -> anyhow::Result<()> {
        let member = &mut self.members[member];
        let deadline = Instant::now() + START_DEADLINE;
        while !is_healthy(member.health) {
            let ended = member.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                let log = std::fs::read_to_string(&member.log).unwrap_or_default();
                bail!("etcd ended with {status}: {log}");
            }
            ensure!(Instant::now() < deadline, "etcd did not serve within {START_DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(child) = &mut member.child {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Tls {
    /// An authority, and a certificate of its for both sides.
    fn generate(directory: &Path) -> anyhow::Result<Self> {
        let authority = Authority::new()?;
        let issued = authority.issue()?;
        let write = |name: &str, pem: &str| {
            let path = directory.join(name);
            std::fs::write(&path, pem).map(|()| path)
        };
        Ok(Self {
            ca: write("ca.pem", authority.pem())?,
            certificate: write("certificate.pem", &issued.certificate)?,
            key: write("key.pem", &issued.key)?,
            authority,
        })
    }
}

/// etcd answers this when it is a member that knows a leader.
fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.0 200") && answer.contains("true"))
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join("etcd")).find(|path| path.is_file())
}
