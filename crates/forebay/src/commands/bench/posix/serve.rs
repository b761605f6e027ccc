//! `--serve`: this machine is one of those that read.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use forebay_benchmark::posix::run::{self, Fio, PORT, Stop};

use super::fault::told;
use super::terminal::Terminal;
use crate::exit::{Exit, Fault};
use crate::output;
use crate::signals::Signals;

/// `ADDRESS` or `ADDRESS:PORT`.
///
/// # Errors
/// When it is neither.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = |text: &str| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
    text.parse().or_else(|_| bare(text)).map_err(|_| "write ADDRESS or ADDRESS:PORT, as in 10.0.1.11".to_owned())
}

/// Runs fio's server until a signal comes. A lost terminal is none.
///
/// # Errors
/// When hosts outside of a private network could reach it, when it cannot listen, or when it ends by itself.
pub(super) async fn run(address: SocketAddr, insecure: bool) -> anyhow::Result<()> {
    if let Some(reason) = reachable(address.ip()).filter(|_| !insecure) {
        let what = format!("--serve {address} {reason}, and whoever reaches it may run anything as this user");
        let next = "name the address that this machine has in the network of its workers, or say --insecure";
        return Err(Fault::new(Exit::Usage, what, next).into());
    }
    let mut signals = Signals::take()?;
    let (stop, terminal) = (Stop::default(), Terminal::now());
    let mut serving = tokio::task::spawn_blocking({
        let stop = stop.clone();
        move || {
            let fio = Fio::find()?;
            run::serve(&fio, address, &stop, |pid| {
                let mut out = output::stdout();
                writeln!(out, "{} serves at {address} as process {pid}. Press Ctrl+C to exit.", fio.version())?;
                out.flush()
            })
        }
    });
    loop {
        tokio::select! {
            served = &mut serving => return served.context("the server panicked")?.map_err(told),
            signal = signals.next() => match signal {
                "SIGHUP" => terminal.leave(),
                _ => stop.ask(),
            },
        }
    }
}

/// Why others than those of a private network may reach this address, if they may.
fn reachable(address: IpAddr) -> Option<&'static str> {
    match address {
        address if address.is_unspecified() => Some("listens at every address of this machine"),
        address if run::is_public(address) => Some("listens at a public address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_addresses_are_served_unasked() {
        for (address, is_refused) in
            [("0.0.0.0", true), ("::", true), ("8.8.8.8", true), ("10.1.0.2", false), ("127.0.0.1", false)]
        {
            assert_eq!(reachable(address.parse().unwrap()).is_some(), is_refused, "{address}");
        }
        assert_eq!(address("10.1.0.2").unwrap().port(), PORT);
    }
}
