//! `fio --server` in the foreground, for as long as this process is to run.
//!
//! It is a child, ended by its number and with all that it started. It is never told to go to the background itself
//! (`--daemonize`): that hangs, and leaves a process that people end by name, and their own session with it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use super::child::Running;
use super::error::RunError;
use super::fio::Fio;
use super::hosts::listening;
use super::stop::Stop;

/// How often it is looked whether a stop was asked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the server may take to listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);

/// Serves at `address` until `stop` is asked. `ready` is called with the server's process number, once it listens.
///
/// # Errors
/// When it cannot listen, or ends by itself.
pub fn serve(
    fio: &Fio,
    address: SocketAddr,
    stop: &Stop,
    ready: impl FnOnce(u32) -> io::Result<()>,
) -> Result<(), RunError> {
    let name = format!("fio --server at {address}");
    // Another server there would be taken for ours.
    if let Err(error) = TcpListener::bind(address) {
        return Err(RunError::Usage(format!(
            "{name} cannot listen ({error}); choose another port, or end what has it"
        )));
    }
    let mut command = fio.command();
    command.arg(format!("--server={}", listening(address)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).process_group(0);
    let start = |error| RunError::Io { doing: "start", path: "fio".into(), error };
    let mut server = Running::start(&mut command).map_err(start)?;
    let pid = server.pid();
    let mut ready = Some(ready);
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = server.wait(LOOK_EVERY).map_err(start)? {
            return Err(RunError::Usage(format!("{name} ended by itself ({status}); what it said is above")));
        }
        if stop.is_asked() {
            return match server.end() {
                Some(pid) => Err(RunError::Stuck { what: name, pid }),
                None => Ok(()),
            };
        }
        if ready.is_none() {
            continue;
        }
        if listens(address) {
            if let Some(ready) = ready.take() {
                ready(pid).map_err(|error| RunError::Io { doing: "write", path: "standard output".into(), error })?;
            }
            continue;
        }
        waited += LOOK_EVERY;
        if waited > LISTEN_WITHIN {
            return Err(RunError::Usage(format!("{name} does not listen within {LISTEN_WITHIN:?}; try another port")));
        }
    }
}

/// Whether it can be connected to. (To try by listening there could keep the server itself from it.)
fn listens(mut address: SocketAddr) -> bool {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    TcpStream::connect_timeout(&address, LOOK_EVERY).is_ok()
}
